"""Sockets: a launch with its search, and the traffic every second."""

from __future__ import annotations

from typing import Any

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncJsonWebsocketConsumer
from django.urls import path
from django.urls.resolvers import URLPattern

from jobs.consumers import JobConsumer
from serving import events
from serving.services import launches, traffic


class LaunchConsumer(JobConsumer):
    def job_id(self) -> int | None:
        return launches.job_id_of(self.scope["url_route"]["kwargs"]["launch_id"])

    def snapshot(self, job_id: int) -> dict[str, Any]:
        return launches.snapshot(job_id)


class TrafficConsumer(AsyncJsonWebsocketConsumer):
    """Passes on what the gateways say; the charts of longer ranges are fetched as pages."""

    async def connect(self) -> None:
        await self.accept()
        await self.channel_layer.group_add(events.TRAFFIC_GROUP, self.channel_name)
        sample = await database_sync_to_async(traffic.latest_sample)()
        await self.send_json({"type": "snapshot", "latest": sample.to_dict() if sample else None})

    async def disconnect(self, code: int) -> None:
        await self.channel_layer.group_discard(events.TRAFFIC_GROUP, self.channel_name)

    async def receive_json(self, content: Any, **kwargs: Any) -> None:
        """A page has nothing to say here."""

    async def traffic_event(self, message: dict[str, Any]) -> None:
        await self.send_json(message["event"])


websocket_urlpatterns: list[URLPattern] = [
    path("ws/launches/<int:launch_id>/", LaunchConsumer.as_asgi()),
    path("ws/traffic/", TrafficConsumer.as_asgi()),
]

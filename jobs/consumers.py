"""The socket behind every job panel: a snapshot first, then what changed since."""

from typing import Any

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncJsonWebsocketConsumer
from django.urls import path
from django.urls.resolvers import URLPattern

from jobs import events, services
from jobs.events import Delta

NOT_LOGGED_IN = 4401
NOT_FOUND = 4404


class JobConsumer(AsyncJsonWebsocketConsumer):
    """Subscribes before it reads the snapshot, so that no change falls between the two."""

    async def connect(self) -> None:
        if not self.scope["user"].is_authenticated:
            await self.close(code=NOT_LOGGED_IN)
            return
        self.seen = -1
        job_id = await database_sync_to_async(self.job_id)()
        await self.accept()
        if job_id is None:
            await self.close(code=NOT_FOUND)
            return
        self.group_name = events.group(job_id)
        await self.channel_layer.group_add(self.group_name, self.channel_name)
        snapshot = await database_sync_to_async(self.snapshot)(job_id)
        self.seen = snapshot["seq"]
        await self.send_json(snapshot)

    async def disconnect(self, code: int) -> None:
        if hasattr(self, "group_name"):
            await self.channel_layer.group_discard(self.group_name, self.channel_name)

    def job_id(self) -> int | None:
        """The watched job's id; None when there is no such job."""
        return services.existing_job_id(self.scope["url_route"]["kwargs"]["job_id"])

    def snapshot(self, job_id: int) -> dict[str, Any]:
        return services.snapshot(job_id)

    async def receive_json(self, content: Any, **kwargs: Any) -> None:
        """A page has nothing to say here; it cancels through a form."""

    async def job_delta(self, delta: Delta) -> None:
        """One message for all that changed together: a page gets as many a second as its job publishes."""
        items = [item for item in delta["items"] if item["seq"] > self.seen]
        if items:
            self.seen = items[-1]["seq"]
            await self.send_json({"type": "delta", "items": items})


websocket_urlpatterns: list[URLPattern] = [path("ws/jobs/<int:job_id>/", JobConsumer.as_asgi())]

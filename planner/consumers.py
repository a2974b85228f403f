"""The socket of a plan run: its job's snapshot with the generations and the best plan so far."""

from __future__ import annotations

from typing import Any

from django.urls import path
from django.urls.resolvers import URLPattern

from jobs.consumers import JobConsumer
from planner import services


class PlanConsumer(JobConsumer):
    def job_id(self) -> int | None:
        return services.job_id_of(self.scope["url_route"]["kwargs"]["run_id"])

    def snapshot(self, job_id: int) -> dict[str, Any]:
        return services.run_snapshot(job_id)


websocket_urlpatterns: list[URLPattern] = [path("ws/plans/<int:run_id>/", PlanConsumer.as_asgi())]

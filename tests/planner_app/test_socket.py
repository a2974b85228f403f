"""The socket of a plan run: a snapshot first, then what changes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from asgiref.testing import ApplicationCommunicator
from channels.routing import URLRouter
from django.contrib.auth.models import AnonymousUser

from accounts.models import User
from jobs.models import Job
from planner import runner, services
from planner.consumers import websocket_urlpatterns
from planner.models import PlanRun

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("valkey_url")]


class Page:
    """An open page: what its socket is told."""

    def __init__(self, run_id: int, user: User | AnonymousUser) -> None:
        path = f"/ws/plans/{run_id}/"
        scope = {"type": "websocket", "path": path, "headers": [], "subprotocols": [], "user": user}
        self.socket = ApplicationCommunicator(URLRouter(websocket_urlpatterns), scope)

    async def open(self) -> dict[str, Any]:
        await self.socket.send_input({"type": "websocket.connect"})
        return await self.output()

    async def output(self) -> dict[str, Any]:
        return dict(await self.socket.receive_output(timeout=30))

    async def message(self) -> dict[str, Any]:
        return dict(json.loads((await self.output())["text"]))

    async def close(self) -> None:
        await self.socket.send_input({"type": "websocket.disconnect", "code": 1000})
        await self.socket.wait()


def new_run(cluster: dict[str, Any]) -> PlanRun:
    job = Job.objects.create(kind=services.TASK, label="Plan")
    return services.record_run(job, cluster, "ga", 1)


async def test_an_open_page_hears_the_generations(small_cluster: dict[str, Any], operator: User) -> None:
    run = await sync_to_async(new_run)(small_cluster)
    page = Page(run.pk, operator)
    assert (await page.open())["type"] == "websocket.accept"
    snapshot = await page.message()
    assert snapshot["type"] == "snapshot"
    assert (snapshot["generations"], snapshot["plan"]) == ([], None)
    await sync_to_async(runner.execute)(run.job_id)
    heard: list[dict[str, Any]] = []
    while not heard or heard[-1].get("job", {}).get("is_active", True):
        heard.append(await page.message())
    points = [point for event in heard if event["type"] == "generations" for point in event["points"]]
    assert [point["number"] for point in points] == list(range(1, len(points) + 1))
    assert points[-1]["best_seconds"] <= points[0]["best_seconds"]
    assert [event["seq"] for event in heard] == sorted(event["seq"] for event in heard)
    await page.close()


async def test_a_page_opened_late_gets_everything_at_once(
    small_cluster: dict[str, Any], operator: User
) -> None:
    run = await sync_to_async(new_run)(small_cluster)
    await sync_to_async(runner.execute)(run.job_id)
    page = Page(run.pk, operator)
    await page.open()
    snapshot = await page.message()
    assert snapshot["job"]["state"] == "succeeded"
    assert len(snapshot["generations"]) > 1
    assert snapshot["plan"]["format"] == "e2llm-plan/1"
    assert snapshot["stages"][0]["stages"][0]["device"].startswith("Dev.")
    await page.close()


async def test_a_stranger_is_turned_away(small_cluster: dict[str, Any]) -> None:
    run = await sync_to_async(new_run)(small_cluster)
    answer = await Page(run.pk, AnonymousUser()).open()
    assert (answer["type"], answer["code"]) == ("websocket.close", 4401)


async def test_a_run_that_does_not_exist_closes_with_not_found(operator: User, db: None) -> None:
    page = Page(987654, operator)
    await page.open()
    closed = await page.output()
    assert (closed["type"], closed["code"]) == ("websocket.close", 4404)

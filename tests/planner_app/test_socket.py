"""The socket of a plan run: a snapshot first, then what changes."""

from __future__ import annotations

from time import monotonic
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from accounts.models import User
from jobs.events import publish
from jobs.models import Job
from jobs.progress import FLUSH_SECONDS
from planner import runner, services
from planner.models import PlanRun
from tests.websocket import Socket

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("valkey_url")]


def new_run(cluster: dict[str, Any]) -> PlanRun:
    job = Job.objects.create(kind=services.TASK, label="Plan")
    return services.record_run(job, cluster, "ga", 1)


async def test_an_open_page_hears_the_generations(small_cluster: dict[str, Any], operator: User) -> None:
    run = await sync_to_async(new_run)(small_cluster)
    page = Socket(f"/ws/plans/{run.pk}/", operator)
    assert await page.open()
    snapshot = await page.receive()
    assert snapshot["type"] == "snapshot"
    assert (snapshot["generations"], snapshot["plan"]) == ([], None)
    await sync_to_async(runner.execute)(run.job_id)
    heard: list[dict[str, Any]] = []
    while not heard or heard[-1].get("job", {}).get("is_active", True):
        heard.append(await page.receive())
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
    page = Socket(f"/ws/plans/{run.pk}/", operator)
    await page.open()
    snapshot = await page.receive()
    assert snapshot["job"]["state"] == "succeeded"
    assert len(snapshot["generations"]) > 1
    assert snapshot["plan"]["format"] == "e2llm-plan/1"
    assert snapshot["stages"][0]["stages"][0]["device"].startswith("Dev.")
    await page.close()


async def test_what_changed_together_is_one_message(small_cluster: dict[str, Any], operator: User) -> None:
    run = await sync_to_async(new_run)(small_cluster)
    page = Socket(f"/ws/plans/{run.pk}/", operator)
    await page.open()
    seen = (await page.receive())["seq"]
    items = [
        {"type": kind, "seq": seen + number} for number, kind in enumerate(("job", "generations", "beat"))
    ]
    await sync_to_async(publish)(run.job_id, items)
    assert await page.receive_message() == {"type": "delta", "items": items[1:]}
    await page.close()


async def test_a_page_of_a_search_gets_four_messages_a_second_at_most(
    small_cluster: dict[str, Any], operator: User
) -> None:
    run = await sync_to_async(new_run)(small_cluster)
    page = Socket(f"/ws/plans/{run.pk}/", operator)
    await page.open()
    began = monotonic()
    await sync_to_async(runner.execute)(run.job_id)
    rounds = 1 + (monotonic() - began) / FLUSH_SECONDS
    event = await page.receive()
    while event.get("job", {}).get("is_active", True):
        event = await page.receive()
    assert page.messages <= 2 + rounds  # a snapshot, and what is left at the end
    await page.close()


async def test_a_stranger_is_turned_away(small_cluster: dict[str, Any]) -> None:
    run = await sync_to_async(new_run)(small_cluster)
    assert not await Socket(f"/ws/plans/{run.pk}/").open()


async def test_a_run_that_does_not_exist_closes_with_not_found(operator: User, db: None) -> None:
    page = Socket("/ws/plans/987654/", operator)
    await page.open()
    closed = await page.communicator.receive_output()
    assert (closed["type"], closed["code"]) == ("websocket.close", 4404)

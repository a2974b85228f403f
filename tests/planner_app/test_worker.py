"""Runs of the planner in a real Celery worker over a real Valkey."""

from __future__ import annotations

import os
import signal
import subprocess
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from accounts.models import User
from jobs import services as jobs
from jobs.models import Job, State
from planner import services
from planner.core.plan import Plan
from planner.models import PlanRun
from tests.conftest import wait_until
from tests.planner_app.conftest import children_of, many_devices

Worker = subprocess.Popen[bytes]
pytestmark = pytest.mark.django_db(transaction=True)


def state_of(run: PlanRun) -> str:
    return Job.objects.values_list("state", flat=True).get(pk=run.job_id)


def has_plan(run: PlanRun) -> bool:
    return state_of(run) == State.SUCCEEDED


def has_begun(run: PlanRun) -> bool:
    return PlanRun.objects.filter(pk=run.pk, checkpoint__isnull=False).exists()


def test_a_run_goes_through_the_queue_to_a_plan(
    worker: Worker, operator: User, small_cluster: dict[str, Any]
) -> None:
    run = services.start_run(small_cluster, "auto", 5, operator)
    wait_until(lambda: state_of(run) == State.SUCCEEDED, "the run has a plan")
    run.refresh_from_db()
    assert Plan.from_dict(run.plan).proof.optimal
    assert run.generations.exists()


def test_two_runs_at_once_are_kept_apart(
    worker: Worker, operator: User, small_cluster: dict[str, Any]
) -> None:
    small = services.start_run(small_cluster, "ga", 1, operator)
    large = services.start_run(many_devices(10), "ga", 1, operator)
    for run in (small, large):
        wait_until(partial(has_plan, run), f"{run} has a plan")
        run.refresh_from_db()
    assert small.plan is not None and large.plan is not None
    assert small.plan["input_sha256"] != large.plan["input_sha256"]
    for run in (small, large):
        numbers = list(run.generations.values_list("number", flat=True))
        assert numbers == list(range(1, len(numbers) + 1))


def test_a_cancelled_search_stops_and_keeps_its_best(worker: Worker, operator: User) -> None:
    run = services.start_run(many_devices(24), "ga", 1, operator)
    wait_until(lambda: has_begun(run), "the search has begun")
    jobs.cancel(Job.objects.get(pk=run.job_id))
    wait_until(lambda: state_of(run) == State.CANCELLED, "the search has stopped")
    run.refresh_from_db()
    assert run.plan is not None


def test_a_search_whose_worker_is_dead_is_cancelled_at_once(
    worker: Worker, page: Client, operator: User
) -> None:
    run = services.start_run(many_devices(24), "ga", 1, operator)
    wait_until(lambda: has_begun(run), "the search has begun")
    os.killpg(worker.pid, signal.SIGKILL)
    wait_until(lambda: Job.objects.get(pk=run.job_id).silent_seconds is not None, "no sign of life")
    page.post(reverse("jobs:cancel", args=[run.job_id]))
    assert state_of(run) == State.CANCELLED
    run.refresh_from_db()
    assert run.plan is not None


def test_a_search_goes_on_after_its_worker_was_killed(worker: Worker, operator: User) -> None:
    run = services.start_run(many_devices(24), "ga", 1, operator)
    wait_until(lambda: has_begun(run), "the search has begun")
    for pid in children_of(worker.pid):
        os.kill(pid, signal.SIGKILL)
    before = list(run.generations.values_list("pk", flat=True))[:1]
    silence = timezone.now() - timedelta(seconds=60)
    Job.objects.filter(pk=run.job_id).update(heartbeat_at=silence)
    jobs.reap()
    wait_until(lambda: state_of(run) == State.SUCCEEDED, "the search has ended", seconds=120)
    run.refresh_from_db()
    numbers = list(run.generations.values_list("number", flat=True))
    assert run.job.attempts == 2
    assert numbers == list(range(1, len(numbers) + 1))
    assert run.generations.filter(pk__in=before).count() == 1

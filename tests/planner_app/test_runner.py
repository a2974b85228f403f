"""A run of the planner inside its job: what it saves, how it stops, and how it goes on after a kill."""

from __future__ import annotations

from typing import Any

import pytest

from accounts.models import User
from jobs import services as jobs
from jobs.models import Job, State
from planner import runner, services
from planner.core.errors import NoFeasiblePlan
from planner.core.plan import Plan
from planner.models import PlanRun

pytestmark = pytest.mark.django_db(transaction=True)


def new_run(cluster: dict[str, Any], method: str = "ga", seed: int = 1) -> PlanRun:
    job = Job.objects.create(kind=services.TASK, label="Plan")
    return services.record_run(job, cluster, method, seed)


def test_a_run_ends_with_a_plan_and_its_generations(small_cluster: dict[str, Any]) -> None:
    run = new_run(small_cluster)
    runner.execute(run.job_id)
    run.refresh_from_db()
    assert run.job.state == State.SUCCEEDED
    assert Plan.from_dict(run.plan).seed == 1
    assert run.checkpoint is None
    numbers = list(run.generations.values_list("number", flat=True))
    assert numbers == list(range(1, len(numbers) + 1))
    best = list(run.generations.values_list("best_seconds", flat=True))
    assert best == sorted(best, reverse=True)


def test_the_same_seed_gives_the_same_plan(small_cluster: dict[str, Any]) -> None:
    runs = [new_run(small_cluster), new_run(small_cluster)]
    for run in runs:
        runner.execute(run.job_id)
        run.refresh_from_db()
    assert runs[0].plan == runs[1].plan


def test_a_model_too_large_leaves_the_limit_and_the_remedy(small_cluster: dict[str, Any]) -> None:
    small_cluster["model"]["block_bytes"] = 60e9
    run = new_run(small_cluster)
    with pytest.raises(NoFeasiblePlan):
        runner.execute(run.job_id)
    run.refresh_from_db()
    assert run.job.state == State.FAILED
    assert run.plan is None
    assert (run.refusal or {}).keys() == {"limit", "text", "shortfall", "unit", "remedy"}


def test_a_cancelled_run_keeps_no_worker_busy(small_cluster: dict[str, Any], operator: User) -> None:
    run = new_run(small_cluster)
    jobs.cancel(run.job)
    runner.execute(run.job_id)
    run.refresh_from_db()
    assert run.job.state == State.CANCELLED
    assert not run.generations.exists()

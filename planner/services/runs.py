"""Start runs of the planner with their inputs frozen, and show how they stand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.db import transaction

from accounts.models import User
from inventory.core.quantities import counted
from inventory.models import Device, LanguageModel
from jobs import services as jobs
from jobs.models import Job
from planner import charts, events, from_inventory
from planner.core.problem import Problem
from planner.models import PlanRun

TASK = "planner.execute_run"
DATA_FOLDER = Path(__file__).resolve().parent.parent / "data"


class RunInUse(Exception):
    """A run that cannot be removed, with the reason and the remedy."""


@dataclass(frozen=True)
class Example:
    """A cluster file that comes with the product."""

    key: str
    name: str

    def cluster(self) -> dict[str, Any]:
        text = (DATA_FOLDER / f"{self.key}.cluster.json").read_text()
        return dict(json.loads(text))


EXAMPLES = (
    Example("gpt-oss-20b", "gpt-oss-20b on eight devices"),
    Example("qwen3-30b-a3b-q4_k_m", "Qwen3-30B-A3B on eight devices"),
)
SMALL_EXAMPLE = Example("two-devices", "Two invented devices, to begin a file of one's own with")


def cluster_of(
    model: LanguageModel, devices: Sequence[Device], workload: dict[str, Any], policy: dict[str, Any]
) -> dict[str, Any]:
    """The cluster file of these devices; CannotPlan when something about them is missing."""
    return from_inventory.cluster_of(model, devices, workload, policy)


def plan_inventory(
    model: LanguageModel,
    devices: Sequence[Device],
    workload: dict[str, Any],
    policy: dict[str, Any],
    method: str,
    user: User | None,
) -> PlanRun:
    """Plan for devices of the inventory; CannotPlan when something about them is missing."""
    cluster = cluster_of(model, devices, workload, policy)
    ids = {device.name: device.pk for device in devices}
    return start_run(cluster, method, policy["seed"], user, model, ids)


def start_run(
    cluster: dict[str, Any],
    method: str,
    seed: int,
    user: User | None,
    model: LanguageModel | None = None,
    device_ids: dict[str, int] | None = None,
    name: str = "",
) -> PlanRun:
    """Freeze the inputs and hand the search to a worker; BadDocument when the cluster file is wrong."""
    problem = Problem.from_dict(cluster)
    name = name or run_name(problem)
    with transaction.atomic():
        job = jobs.start(TASK, {}, user, label=f"Plan {name}")
        return record_run(job, cluster, method, seed, model, device_ids, name)


def record_run(
    job: Job,
    cluster: dict[str, Any],
    method: str,
    seed: int,
    model: LanguageModel | None = None,
    device_ids: dict[str, int] | None = None,
    name: str = "",
) -> PlanRun:
    """The row of a run that `job` does, for a job that plans as one of its steps."""
    problem = Problem.from_dict(cluster)
    return PlanRun.objects.create(
        job=job,
        name=name or run_name(problem),
        model=model,
        cluster={**cluster, "policy": {**cluster["policy"], "seed": seed}},
        device_ids=device_ids or {},
        method=method,
        seed=seed,
    )


def removal_refusal(run: PlanRun) -> str:
    """Why a run cannot be removed now, with the remedy; empty when it can."""
    if run.job.is_active:
        return "Its search goes on. Cancel that first, then remove the run."
    deployment = run.deployments.first()
    if deployment:
        return f"The deployment {deployment} was made of it, whose history would be lost: it stays."
    if run.launch_set.filter(stage="confirm").exists():
        return "A launch waits for the confirmation of this plan. Confirm or end that first."
    return ""


@transaction.atomic
def remove_run(run: PlanRun) -> None:
    """Forget a run with its inputs and its plan; its job stays in the list of jobs."""
    refusal = removal_refusal(run)
    if refusal:
        raise RunInUse(refusal)
    run.delete()


def run_name(problem: Problem) -> str:
    return f"{problem.model.name} on {counted(len(problem.devices), 'device')}"[:200]


def job_id_of(run_id: int) -> int | None:
    return PlanRun.objects.filter(pk=run_id).values_list("job_id", flat=True).first()


def points_of(run: PlanRun) -> list[events.Point]:
    return [events.point(row) for row in run.generations.all()]


def run_snapshot(job_id: int) -> dict[str, Any]:
    """The job's snapshot, the generations so far and the best plan with its stage diagram."""
    snapshot = jobs.snapshot(job_id)
    run = PlanRun.objects.get(job_id=job_id)
    rows = charts.stage_rows(run.plan, run.cluster) if run.plan else []
    return snapshot | events.run_snapshot(points_of(run), run.plan, rows)

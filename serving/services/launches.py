"""Plan and deploy: one piece of work from devices and a model to an answer, with one confirm."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from django.db import transaction

from accounts.models import User
from accounts.services import audit
from inventory.models import Device, LanguageModel
from jobs import services as jobs
from planner import charts, events
from planner.from_inventory import CannotPlan, standing_gaps
from planner.models import PlanRun
from planner.services import points_of
from serving.models import Deployment, Launch
from serving.runner.launch import TASK
from serving.services import deployments
from serving.services.deployments import CannotDeploy


def start_launch(
    model: LanguageModel,
    devices: Sequence[Device],
    workload: dict[str, Any],
    policy: dict[str, Any],
    user: User | None,
    *,
    deploys_unasked: bool = False,
) -> Launch:
    """Start measuring what is missing and planning.

    CannotPlan names devices that cannot be used as they are; AlreadyRunning while another launch of the model runs.
    """
    gaps = standing_gaps(model, devices)
    if gaps:
        raise CannotPlan(gaps)
    with transaction.atomic():
        job = jobs.start(TASK, {}, user, label=f"Plan and deploy {model}", subject=f"launch:{model.pk}")
        launch = Launch.objects.create(
            job=job, model=model, workload=workload, policy=policy, deploys_unasked=deploys_unasked
        )
        launch.devices.set(devices)
    names = [device.name for device in devices]
    audit(user, "launch.started", model, {"launch": launch.pk, "devices": names})
    return launch


def confirm_launch(launch: Launch, user: User | None) -> Deployment:
    """Deploy the plan that the launch has made."""
    with transaction.atomic():
        waiting = Launch.objects.select_for_update().filter(pk=launch.pk, stage=Launch.Stages.CONFIRM)
        locked = waiting.select_related("plan_run__model").first()
        if locked is None or locked.plan_run is None:
            raise CannotDeploy("This launch is not waiting for a confirm any more.")
        locked.deployment = deployments.deploy_run(locked.plan_run, user)
        locked.stage = Launch.Stages.DEPLOYING
        locked.save(update_fields=["deployment", "stage"])
    return locked.deployment


def after_planning(job_id: int) -> None:
    """Go on without asking when the confirm was given at the start."""
    launch = Launch.objects.filter(job_id=job_id, stage=Launch.Stages.CONFIRM, deploys_unasked=True).first()
    if launch is not None:
        with suppress(jobs.AlreadyRunning):  # its page then waits for a confirm like any other
            confirm_launch(launch, launch.job.started_by)


def drop_launch(launch: Launch, user: User | None) -> None:
    """End a launch before it deploys; what was measured and planned is kept."""
    if launch.job.is_active:
        jobs.cancel(launch.job)
    Launch.objects.filter(pk=launch.pk).exclude(stage=Launch.Stages.READY).update(stage=Launch.Stages.ENDED)
    audit(user, "launch.dropped", launch.model, {"launch": launch.pk})


def job_id_of(launch_id: int) -> int | None:
    return Launch.objects.filter(pk=launch_id).values_list("job_id", flat=True).first()


def snapshot(job_id: int) -> dict[str, Any]:
    """The job's snapshot with the search of its plan, as far as it is."""
    run = PlanRun.objects.filter(job_id=job_id).first()
    points = points_of(run) if run else []
    plan = run.plan if run else None
    rows = charts.stage_rows(plan, run.cluster) if run and plan else []
    return jobs.snapshot(job_id) | events.run_snapshot(points, plan, rows)

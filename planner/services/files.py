"""Cluster and plan files: read from disk, checked against each other, and taken in as runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from django.db import transaction
from django.utils import timezone

from accounts.models import User
from jobs.models import Job, State
from planner.core.errors import BadDocument
from planner.core.plan import Plan
from planner.core.problem import Problem
from planner.models import PlanRun
from planner.services.runs import TASK, record_run, run_name

LARGEST_FILE_BYTES = 64 * 1024 * 1024


def read_document(path: Path) -> Any:
    """The JSON in a file; BadDocument says why it cannot be read."""
    try:
        if path.stat().st_size > LARGEST_FILE_BYTES:
            raise BadDocument([f"{path}: is larger than {LARGEST_FILE_BYTES // 2**20} MiB"])
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadDocument([f"{path}: {error.strerror}"]) from error
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise BadDocument([f"{path}: is not JSON: {error}"]) from error


def plan_for(problem: Problem, document: Any) -> Plan:
    """The plan of a plan file, if it can be one for this problem; else BadDocument with every reason."""
    plan = Plan.from_dict(document)
    devices = {device.name: device for device in problem.devices}
    problems = []
    for number, replica in enumerate(plan.replicas):
        blocks = sum(stage.blocks for stage in replica.stages)
        if blocks != problem.model.blocks:
            problems.append(
                f"replicas[{number}]: holds {blocks} blocks, the model has {problem.model.blocks}"
            )
        for position, stage in enumerate(replica.stages):
            path = f"replicas[{number}].stages[{position}]"
            device = devices.get(stage.device)
            if device is None:
                problems.append(f"{path}.device: {stage.device!r} is not a device of the cluster file")
            elif stage.cpu_blocks and device.decode.cpu_block_seconds is None:
                problems.append(f"{path}.cpu_blocks: {stage.device} has no CPU latencies in the cluster file")
    if problems:
        raise BadDocument(problems)
    return plan


def import_run(cluster: dict[str, Any], document: Any, user: User | None) -> PlanRun:
    """A finished run made of a cluster file and the plan that belongs to it."""
    problem = Problem.from_dict(cluster)
    plan = plan_for(problem, document)
    label = f"Imported: {run_name(problem)}"[:200]
    now = timezone.now()
    with transaction.atomic():
        job = Job.objects.create(
            kind=TASK, label=label, state=State.SUCCEEDED, started_by=user, started_at=now, ended_at=now
        )
        run = record_run(job, cluster, PlanRun.Methods.AUTO, plan.seed, name=label)
        run.plan = plan.to_dict()
        run.save(update_fields=["plan"])
    return run

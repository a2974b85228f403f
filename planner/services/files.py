"""Cluster and plan files: read from disk, checked against each other, and taken in as runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from django.db import transaction
from django.utils import timezone

from accounts.models import User
from jobs.models import Job, State
from planner.core.document import raise_if_any, read_json
from planner.core.errors import BadDocument, NotJson
from planner.core.fitting import faults
from planner.core.plan import Plan
from planner.core.problem import LARGEST_SEED, Problem
from planner.core.recomputed import contradictions, wrong_predictions
from planner.models import PlanRun
from planner.services.runs import TASK, record_run, run_name

LARGEST_FILE_BYTES = 64 * 1024 * 1024
LARGEST_KEPT_SEED = 2**31 - 1


def read_document(path: Path) -> Any:
    """The JSON in a file; BadDocument says why it cannot be read."""
    try:
        if path.stat().st_size > LARGEST_FILE_BYTES:
            raise BadDocument([f"{path}: is larger than {LARGEST_FILE_BYTES // 2**20} MiB"])
        return read_json(path.read_bytes())
    except OSError as error:
        raise BadDocument([f"{path}: {error.strerror}"]) from error
    except NotJson as error:
        raise BadDocument([f"{path}: {error}"]) from error


def read_problem(path: Path, seed: int | None) -> Problem:
    """The problem in a cluster file, with another seed where one is given; BadDocument says what is wrong."""
    problem = Problem.from_dict(read_document(path))
    return problem if seed is None else with_seed(problem, seed)


def with_seed(problem: Problem, seed: int) -> Problem:
    """The problem with another seed; BadDocument for one that a cluster file could not hold either."""
    if not 0 <= seed <= LARGEST_SEED:
        raise BadDocument([f"seed: {seed} is not between 0 and {LARGEST_SEED}"])
    return replace(problem, policy=replace(problem.policy, seed=seed))


def plan_for(problem: Problem, document: Any) -> Plan:
    """The plan of a plan file, if it can be one for this problem; else BadDocument with every reason."""
    plan = Plan.from_dict(document)
    raise_if_any(faults(problem, plan))
    raise_if_any(contradictions(problem, plan))
    return plan


def import_run(cluster: dict[str, Any], document: Any, user: User | None) -> PlanRun:
    """A finished run made of a cluster file and the plan that belongs to it."""
    problem = Problem.from_dict(cluster)
    plan = plan_for(problem, document)
    raise_if_any(wrong_predictions(problem, plan))
    if plan.seed > LARGEST_KEPT_SEED:
        raise BadDocument(
            [f"seed: {plan.seed} is more than {LARGEST_KEPT_SEED}, the largest that a run keeps"]
        )
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

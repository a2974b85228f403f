"""Are the numbers of a plan file those of its cluster: each worked out again, from the blocks that it places."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isclose
from typing import Any

from planner.core.assembly import build_replica, predict
from planner.core.catalogue import Catalogue, Option
from planner.core.plan import Plan, Replica
from planner.core.problem import Problem

ROUNDING_SHARE, ROUNDING = 1e-4, 1e-9
WAITS = (
    "max_wait_seconds",
    "mean_wait_seconds",
    "p95_wait_seconds",
    "ttft_seconds",
)  # simulated, not worked out


def contradictions(problem: Problem, plan: Plan) -> list[str]:
    """Every number that is not what the cluster gives, with its path; for a plan that `fitting` finds no fault in."""
    catalogue = Catalogue(problem)
    found: list[str] = []
    options: list[Option] = []
    for number, replica in enumerate(plan.replicas):
        option, again = _again(catalogue, replica)
        options.append(option)
        found += _of_a_replica(replica, again, f"replicas[{number}]")
    if found:
        return found
    told, ours = vars(plan.predicted), vars(predict(catalogue, options))
    load, ours_load = told["utilisation"], ours["utilisation"]
    compared = {key: value for key, value in told.items() if key not in (*WAITS, "utilisation")}
    return [*_differing(compared, ours, "predicted"), *_differing(load, ours_load, "predicted.utilisation")]


def _again(catalogue: Catalogue, replica: Replica) -> tuple[Option, Replica]:
    """The replica with the same blocks on the same devices, as the planner would write it."""
    problem = catalogue.problem
    index = {device.name: k for k, device in enumerate(problem.devices)}
    stages = sorted(replica.stages, key=lambda one: (problem.kind_of[index[one.device]], index[one.device]))
    devices = tuple(index[stage.device] for stage in stages)
    option = catalogue.option_of(
        replica.role,
        replica.slots,
        catalogue.group_of(devices),
        [stage.blocks for stage in stages],
        next(k for k, stage in enumerate(stages) if stage.master),
    )
    return option, build_replica(catalogue, devices, option)


def _of_a_replica(replica: Replica, again: Replica, path: str) -> Iterator[str]:
    ours = {stage.device: stage for stage in again.stages}
    stages = [(number, stage, ours[stage.device]) for number, stage in enumerate(replica.stages)]
    for number, stage, other in stages:
        yield from _differing(vars(stage), vars(other), f"{path}.stages[{number}]")
    yield from _differing(vars(replica), vars(again), path)


def _differing(told: Mapping[str, Any], ours: Mapping[str, Any], path: str) -> Iterator[str]:
    for key, value in told.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and not isclose(value, ours[key], rel_tol=ROUNDING_SHARE, abs_tol=ROUNDING):
            yield f"{path}.{key}: {value:g}, but the cluster file makes it {ours[key]:g}"

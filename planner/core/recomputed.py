"""Are the numbers of a plan file those of its cluster: each worked out again, from the blocks that it places."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import isclose
from typing import Any

from planner.core.assembly import build_replica, predict
from planner.core.catalogue import Catalogue, Option
from planner.core.forecast import SIMULATED_REQUESTS, bursts, forecast, with_forecast
from planner.core.plan import Plan, Predicted, Replica
from planner.core.problem import Problem

ROUNDING_SHARE, ROUNDING = 1e-4, 1e-9
WAITS = (
    "max_wait_seconds",
    "mean_wait_seconds",
    "p95_wait_seconds",
    "ttft_seconds",
)  # simulated, not worked out


def contradictions(problem: Problem, plan: Plan) -> list[str]:
    """Numbers of replicas that the cluster does not give, with their paths; `fitting` has found no fault before."""
    catalogue = Catalogue(problem)
    found: list[str] = []
    for number, replica in enumerate(plan.replicas):
        found += _of_a_replica(replica, _again(catalogue, replica)[1], f"replicas[{number}]")
    return found


def wrong_predictions(problem: Problem, plan: Plan) -> list[str]:
    """What a plan without contradictions predicts for this very workload and the formula or simulation does not."""
    catalogue = Catalogue(problem)
    formula = predict(catalogue, [_again(catalogue, replica)[0] for replica in plan.replicas])
    found = _of_predictions(plan.predicted, formula)
    n_bursts = len(drawn := bursts(problem.workload, plan.seed))
    if found and problem.workload.requests * n_bursts <= SIMULATED_REQUESTS:
        # A stopped search leaves the waits of the formula, every other one those of the simulation.
        simulated = with_forecast(replace(plan, predicted=formula), forecast(problem, plan, drawn))
        return _of_predictions(plan.predicted, simulated.predicted)
    return [one for one in found if not one.startswith(WAITS)]


def _of_predictions(told: Predicted, ours: Predicted) -> list[str]:
    return [
        *_differing(vars(told), vars(ours), "predicted"),
        *_differing(told.utilisation, ours.utilisation, "predicted.utilisation"),
    ]


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

"""How far a plan is from its limits: memory left on each device, and what one slot more or less would do."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inventory.core.quantities import counted, seconds_text
from planner.core.catalogue import Catalogue
from planner.core.explain import bytes_text
from planner.core.figures import figures
from planner.core.plan import Plan, Replica
from planner.core.problem import Problem
from planner.core.slots import MIXED, PREFILL, Gathered


@dataclass(frozen=True)
class Margin:
    """One sentence about a replica (its number in the plan), and the device it is about, if one."""

    replica: int
    device: str | None
    text: str


def margins(problem: Problem, plan: Plan) -> list[Margin]:
    """The tightest device of each replica, and for those that generate what changes with one slot more or less."""
    catalogue = Catalogue(problem)
    found = []
    for number, replica in enumerate(plan.replicas):
        found.append(_tightest(number, replica))
        if replica.role != PREFILL:
            found.append(Margin(number, None, _one_more(catalogue, replica)))
            if replica.slots > len(replica.stages):
                found.append(Margin(number, None, _one_less(catalogue, replica)))
    return found


def _tightest(number: int, replica: Replica) -> Margin:
    stage = min(replica.stages, key=lambda one: one.gpu_limit_bytes - one.gpu_bytes)
    free = max(0.0, stage.gpu_limit_bytes - stage.gpu_bytes)
    text = (
        f"{stage.device} is tightest: {bytes_text(stage.gpu_bytes)} of {bytes_text(stage.gpu_limit_bytes)} used, "
        f"{bytes_text(free)} free."
    )
    return Margin(number, stage.device, text)


@dataclass(frozen=True)
class Pace:
    """A replica's best split at some number of slots: seconds of a token with all slots busy, and requests a second."""

    token_seconds: float
    rate: float


def pace_of(catalogue: Catalogue, replica: Replica, slots: int) -> Pace | None:
    """The plan's own measures for these devices at that many slots; None where it does not fit."""
    problem = catalogue.problem
    index = {device.name: k for k, device in enumerate(problem.devices)}
    group = catalogue.group_of(tuple(index[name] for name in replica.devices))
    points = catalogue.points(replica.role, len(group))
    rows = np.flatnonzero(points.slots == slots)
    splits = catalogue.splits(replica.role, [group])
    if splits is None or not len(rows) or not np.isfinite(splits.pass_seconds[0, rows[0]]):
        return None
    able = figures(problem, points, splits, Gathered(points, [group]))
    return Pace(float(able.tpot[0, rows[0]]), float(able.rate[0, rows[0]]))


def _slot_step(catalogue: Catalogue, replica: Replica) -> int:
    return 1 if catalogue.serial else len(replica.stages)


def _one_more(catalogue: Catalogue, replica: Replica) -> str:
    policy = catalogue.problem.policy
    more = replica.slots + _slot_step(catalogue, replica)
    if more > policy.max_slots:
        return f"{counted(replica.slots, 'slot')} is the most that the policy allows ({policy.max_slots})."
    pace = pace_of(catalogue, replica, more)
    if pace is None:
        return f"{counted(more, 'slot')} would not fit in memory."
    speed = 1.0 / pace.token_seconds
    if speed < policy.min_tokens_per_second:
        return (
            f"{_busy(replica, more)} each request would get only {speed:.3g} tokens/s; "
            f"the floor is {policy.min_tokens_per_second:g}."
        )
    return _changed(catalogue, replica, more, pace)


def _one_less(catalogue: Catalogue, replica: Replica) -> str:
    less = replica.slots - _slot_step(catalogue, replica)
    pace = pace_of(catalogue, replica, less)
    if pace is None:
        return f"No split of these devices runs {counted(less, 'slot')}."
    return _changed(catalogue, replica, less, pace)


def _busy(replica: Replica, slots: int) -> str:
    prompts = " and prompts in between," if replica.role == MIXED and slots > 1 else ","
    return f"With {counted(slots, 'slot')} {'all busy' if slots > 1 else 'busy'}{prompts}"


def _more_or_fewer(share: float) -> str:
    if abs(share) < 5e-4:
        return "as many requests"
    return f"{100 * abs(share):.1f} % {'more' if share > 0 else 'fewer'} requests"


def _changed(catalogue: Catalogue, replica: Replica, slots: int, pace: Pace) -> str:
    """The same two measures with another number of slots and now."""
    now = pace_of(catalogue, replica, replica.slots)
    before = now.rate if now else replica.requests_per_second
    return (
        f"{_busy(replica, slots)} each request would get a token every "
        f"{seconds_text(pace.token_seconds)} (now {seconds_text(replica.tpot_seconds)}), and the replica would serve "
        f"{_more_or_fewer(pace.rate / before - 1)}."
    )


def comparison(plan: Plan) -> list[str]:
    """What other planners' plans would give for the same workload, longest simulated wait first."""
    feasible = [other for other in plan.baselines.values() if other["feasible"]]
    told = [
        f"{other['label']}: longest wait {seconds_text(other['max_wait_seconds'])}"
        f"{'' if other['holds_floor'] else ', some requests below the floor'}."
        for other in sorted(feasible, key=lambda one: -one["max_wait_seconds"])
    ]
    return told + [
        f"{other['label']}: no plan." for other in plan.baselines.values() if not other["feasible"]
    ]

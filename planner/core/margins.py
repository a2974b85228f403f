"""How far a plan is from its limits: memory left on each device, and what one slot more or less would do."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.core.catalogue import Catalogue
from planner.core.counted import counted
from planner.core.explain import bytes_text, seconds_text
from planner.core.plan import Plan, Replica
from planner.core.problem import Problem
from planner.core.slots import DECODE, PREFILL


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


def _step(catalogue: Catalogue, replica: Replica, slots: int) -> float:
    """Seconds per token of the best split of these devices at that many slots; infinite where it does not fit."""
    problem = catalogue.problem
    index = {device.name: k for k, device in enumerate(problem.devices)}
    group = catalogue.group_of(tuple(index[name] for name in replica.devices))
    seconds = catalogue.step_seconds(group)
    rows = np.flatnonzero(catalogue.points(DECODE, len(group)).slots == slots)
    return float(seconds[rows[0]]) if len(rows) and len(seconds) else float(np.inf)


def _slot_step(catalogue: Catalogue, replica: Replica) -> int:
    return 1 if catalogue.serial else len(replica.stages)


def _one_more(catalogue: Catalogue, replica: Replica) -> str:
    policy = catalogue.problem.policy
    more = replica.slots + _slot_step(catalogue, replica)
    if more > policy.max_slots:
        return f"{counted(replica.slots, 'slot')} is the most that the policy allows ({policy.max_slots})."
    seconds = _step(catalogue, replica, more)
    if not np.isfinite(seconds):
        return f"{counted(more, 'slot')} would not fit in memory."
    speed = 1.0 / seconds
    if speed < policy.min_tokens_per_second:
        return (
            f"{counted(more, 'slot')} would give each request {speed:.3g} tokens/s; the floor is "
            f"{policy.min_tokens_per_second:g}."
        )
    if replica.role != DECODE:
        effect = "would let prompts push running requests below the floor, or serve fewer of them"
        return f"{counted(more, 'slot')} {effect}."
    change = more / seconds / (replica.slots / replica.tpot_seconds) - 1
    return f"{counted(more, 'slot')} would change the rate of this replica by {change:+.1%}."


def _one_less(catalogue: Catalogue, replica: Replica) -> str:
    less = replica.slots - _slot_step(catalogue, replica)
    seconds = _step(catalogue, replica, less)
    now = _step(catalogue, replica, replica.slots)
    if not np.isfinite(seconds):
        return f"{counted(less, 'slot')} would not hold the floor."
    change = less / seconds / (replica.slots / now) - 1
    step = f"With {counted(less, 'slot')} a token would take {seconds_text(seconds)}"
    return f"{step}; the rate would change by {change:+.1%}."


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

"""What each device brings to a plan, and why one stands idle."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from planner.core.latency import Costs
from planner.core.margins import margins
from planner.core.plan import Plan
from planner.core.problem import Problem
from planner.core.slots import DECODE
from planner.services.inputs import with_twin, without_devices
from planner.services.what_if import WhatIf, what_if

WORTH_DEVICES = 8  # two searches for each of them take a second or two


@dataclass(frozen=True)
class Worth:
    """What a plan without one device predicts, or the reason why there is none, and what one with two of it does."""

    device: str
    without: dict[str, Any] | None
    reason: str
    twice: dict[str, Any] | None


def worth_of_devices(cluster: dict[str, Any]) -> list[Worth]:
    """Two searches for each device; for fleets where that is quick."""
    names = [device["name"] for device in cluster["devices"]]
    assert 1 < len(names) <= WORTH_DEVICES, "the page offers this for small fleets only"
    return [worth_of(cluster, name) for name in names]


def worth_of(cluster: dict[str, Any], name: str) -> Worth:
    without = what_if(without_devices(cluster, [name]))
    reason = without.refusal.text if without.refusal else ""
    return Worth(name, predicted(without), reason, predicted(what_if(with_twin(cluster, name))))


def predicted(found: WhatIf) -> dict[str, Any] | None:
    return asdict(found.plan.predicted) if found.plan else None


def idle_reasons(cluster: dict[str, Any], plan: dict[str, Any]) -> dict[str, str]:
    """Why each idle device has no part in the plan."""
    if not plan["idle"]:
        return {}
    problem = Problem.from_dict(cluster)
    costs = Costs(problem)
    kinds = {device.name: kind for device, kind in zip(problem.devices, problem.kind_of, strict=True)}
    useless = (
        "by the formula no plan waits less with it"
        if plan["proof"]["optimal"]
        else "no plan that was found waits less with it"
    )
    return {name: no_room(costs, kinds[name]) or useless for name in plan["idle"]}


def no_room(costs: Costs, kind: int) -> str:
    """Why not one block may lie on a device, if so."""
    if costs.kinds[kind].max_blocks == 0:
        return "its max_blocks allows no block"
    if costs.table(kind, DECODE, (1,), (1.0,)).most_blocks[:, 0].max() == 0:
        return "not one block with one slot fits its memory"
    return ""


def margin_sentences(cluster: dict[str, Any], plan: dict[str, Any]) -> list[list[str]]:
    """For each replica: its tightest device, and what one slot more or less would do."""
    found = margins(Problem.from_dict(cluster), Plan.from_dict(plan))
    return [
        [margin.text for margin in found if margin.replica == number]
        for number in range(len(plan["replicas"]))
    ]

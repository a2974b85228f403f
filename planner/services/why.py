"""What each device brings to a plan, and why one stands idle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from planner.core.latency import Costs
from planner.core.margins import margins
from planner.core.plan import Plan
from planner.core.problem import Problem
from planner.core.slots import DECODE
from planner.services.what_if import EXACT_DEVICES, changed_cluster, what_if


@dataclass(frozen=True)
class Worth:
    """The longest wait if one device were left out; None when there would be no plan at all."""

    device: str
    wait_seconds: float | None
    reason: str


def worth_of_devices(cluster: dict[str, Any]) -> list[Worth]:
    """One exact search for each device; for fleets where that is quick."""
    names = [device["name"] for device in cluster["devices"]]
    assert 1 < len(names) <= EXACT_DEVICES, "the page offers this for small fleets only"
    return [worth_of(cluster, name) for name in names]


def worth_of(cluster: dict[str, Any], name: str) -> Worth:
    found = what_if(changed_cluster(cluster, {}, {}, [name]))
    if found.plan is None:
        return Worth(name, None, found.refusal.text if found.refusal else "")
    return Worth(name, found.plan.predicted.max_wait_seconds, "")


def idle_reasons(cluster: dict[str, Any], plan: dict[str, Any]) -> dict[str, str]:
    """Why each idle device has no part in the plan."""
    if not plan["idle"]:
        return {}
    problem = Problem.from_dict(cluster)
    costs = Costs(problem)
    kinds = {device.name: kind for device, kind in zip(problem.devices, problem.kind_of, strict=True)}
    useless = (
        "no plan waits less with it"
        if plan["proof"]["optimal"]
        else "no plan that was found waits less with it"
    )
    return {
        name: useless if holds_a_block(costs, kinds[name]) else "not one block with one slot fits its memory"
        for name in plan["idle"]
    }


def holds_a_block(costs: Costs, kind: int) -> bool:
    return bool(costs.table(kind, DECODE, (1,), (1.0,)).most_blocks[:, 0].max() > 0)


def margin_sentences(cluster: dict[str, Any], plan: dict[str, Any]) -> list[list[str]]:
    """For each replica: its tightest device, and what one slot more or less would do."""
    found = margins(Problem.from_dict(cluster), Plan.from_dict(plan))
    return [
        [margin.text for margin in found if margin.replica == number]
        for number in range(len(plan["replicas"]))
    ]

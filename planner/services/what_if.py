"""What the plan would be if the inputs were a little different, worked out while the person waits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from planner.core.errors import NoFeasiblePlan
from planner.core.forecast import waiting_curve
from planner.core.plan import Plan
from planner.core.problem import Problem
from planner.core.search import SearchSettings, find_plan

EXACT_DEVICES = 8  # the exact solver answers within a blink up to here
QUICK_GENERATIONS = 15


@dataclass(frozen=True)
class WhatIf:
    """A plan for changed inputs, or why there is none."""

    cluster: dict[str, Any]
    plan: Plan | None
    refusal: NoFeasiblePlan | None
    is_exact: bool


def what_if(cluster: dict[str, Any]) -> WhatIf:
    """Exact where that is quick; BadDocument when the changes do not make sense."""
    problem = Problem.from_dict(cluster)
    is_exact = len(problem.devices) <= EXACT_DEVICES
    method = "exact" if is_exact else "ga"
    settings = SearchSettings(method, generations=QUICK_GENERATIONS, compare=False)
    try:
        return WhatIf(cluster, find_plan(problem, settings), None, is_exact)
    except NoFeasiblePlan as error:
        return WhatIf(cluster, None, error, is_exact)


def waiting_times(cluster: dict[str, Any], plan: dict[str, Any]) -> list[float]:
    """Simulated wait in seconds of every request of one burst."""
    simulation = waiting_curve(Problem.from_dict(cluster), Plan.from_dict(plan))
    return [float(seconds) for seconds in simulation.wait_seconds]

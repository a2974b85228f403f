"""Plans in simulation, for pages: one burst, and the waits of a search that was stopped before it simulated."""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
from typing import Any

from planner.core.forecast import SIMULATED_REQUESTS, Forecast, bursts, forecast, waiting_curve, with_forecast
from planner.core.plan import Plan
from planner.core.problem import Problem
from planner.core.simulate import Simulation
from planner.models import Origin, PlanRun

KEPT_FORECASTS = 256  # a stopped search keeps its plan for good


def one_burst(cluster: dict[str, Any], plan: dict[str, Any]) -> Simulation:
    """Every request of one burst."""
    return waiting_curve(Problem.from_dict(cluster), Plan.from_dict(plan))


def has_simulated_waits(run: PlanRun) -> bool:
    """Whether a list can show simulated waits of this run: those of a large burst take too long there."""
    if run.origin != Origin.STOPPED:
        return True
    return run.plan is not None and not run.job.is_active and is_soon_simulated(run.cluster)


def is_soon_simulated(cluster: dict[str, Any]) -> bool:
    problem = Problem.from_dict(cluster)
    n_bursts = len(bursts(problem.workload, problem.policy.seed))
    return problem.workload.requests * n_bursts <= SIMULATED_REQUESTS


def plan_of(run: PlanRun) -> dict[str, Any]:
    """The plan of a run that is over, with simulated waits also where its search was stopped."""
    assert run.plan is not None, "a run without a plan has its own page"
    if run.origin != Origin.STOPPED:
        return run.plan
    told = stopped_forecast(run.pk, run.job.ended_at)
    return with_forecast(Plan.from_dict(run.plan), told).to_dict()


@lru_cache(KEPT_FORECASTS)
def stopped_forecast(run_id: int, ended_at: datetime | None) -> Forecast:
    """What the bursts of a search say of the best plan that a stopped one left; of a large burst one is enough."""
    run = PlanRun.objects.get(pk=run_id)
    problem = Problem.from_dict(run.cluster)
    drawn = bursts(problem.workload, problem.policy.seed)
    few = drawn if is_soon_simulated(run.cluster) else drawn[:1]
    return forecast(problem, Plan.from_dict(run.plan), few)

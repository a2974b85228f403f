"""What the simulator says of a plan, averaged over a few drawn bursts of the problem's workload."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.core.burst import Requests, sample
from planner.core.explain import with_queue
from planner.core.plan import Plan
from planner.core.problem import Problem, Workload
from planner.core.servers import servers
from planner.core.simulate import LATE, Simulation, simulate

BURSTS = 3
SIMULATED_REQUESTS = 60_000  # over all candidates and bursts of one search
KEPT_CANDIDATES = 60
# A plan that waits longer than the best by this much in the first burst is not simulated further: over all the
# benchmarks' clusters the plan with the lowest mean was never more than 5 % behind in the first burst.
BEHIND_SHARE, BEHIND_SECONDS = 0.15, 1.0
CURVE_STEPS = 20  # a waiting curve is nearly straight between these: more would only make plan files longer


@dataclass(frozen=True)
class Forecast:
    """Simulated figures; waits and times to the first token in seconds."""

    max_wait_seconds: float
    mean_wait_seconds: float
    p95_wait_seconds: float
    ttft_seconds: float
    slowest_tokens_per_second: float

    def holds(self, tokens_per_second: float) -> bool:
        return self.slowest_tokens_per_second >= tokens_per_second * (1 - 1e-9)


def bursts(workload: Workload, seed: int) -> list[Requests]:
    """The bursts that every plan of a search is simulated with; one is enough when nothing is left to chance."""
    is_fixed = workload.arrivals == "fixed" and workload.input_cv == 0 and workload.output_cv == 0
    return [sample(workload, np.random.default_rng([seed, k])) for k in range(1 if is_fixed else BURSTS)]


def promising(first: Sequence[Forecast], tokens_per_second: float) -> list[int]:
    """Which plans are worth more bursts after the first one: those near the best that holds the floor."""
    able = [one for one in first if one.holds(tokens_per_second)] or first
    most = min(one.max_wait_seconds for one in able) * (1 + BEHIND_SHARE) + BEHIND_SECONDS
    return [k for k, one in enumerate(first) if one in able and one.max_wait_seconds <= most]


def affordable_candidates(workload: Workload, n_bursts: int) -> int:
    """How many plans are simulated, so that a huge burst does not make the search slow."""
    return max(1, min(KEPT_CANDIDATES, SIMULATED_REQUESTS // (workload.requests * n_bursts)))


class Rehearsal:
    """A plan under the drawn bursts, simulated one after the other as far as somebody asks."""

    def __init__(self, problem: Problem, plan: Plan, drawn: Sequence[Requests], router: str = LATE) -> None:
        self.drawn = drawn
        self.router = router
        self._fleet = servers(problem, plan)
        self._runs: list[Simulation] = []

    def forecast(self, n_bursts: int) -> Forecast:
        """What the first bursts say, on average."""
        for requests in self.drawn[len(self._runs) : n_bursts]:
            self._runs.append(simulate(self._fleet, requests, self.router))
        runs = self._runs[:n_bursts]
        return Forecast(
            max_wait_seconds=_mean(run.max_wait_seconds for run in runs),
            mean_wait_seconds=_mean(run.mean_wait_seconds for run in runs),
            p95_wait_seconds=_mean(run.p95_wait_seconds for run in runs),
            ttft_seconds=_mean(float(run.ttft_seconds.mean()) for run in runs),
            slowest_tokens_per_second=min(run.slowest_tokens_per_second for run in runs),
        )

    def wait_curve_seconds(self) -> list[float]:
        """The wait that 0 %, 5 %, ... 100 % of the requests do not exceed, on average over the bursts simulated."""
        shares = np.linspace(0.0, 100.0, CURVE_STEPS + 1)
        curves = [np.percentile(run.wait_seconds, shares) for run in self._runs]
        return [float(f"{seconds:.4g}") for seconds in np.mean(curves, axis=0)]


def forecast(problem: Problem, plan: Plan, drawn: Sequence[Requests], router: str = LATE) -> Forecast:
    return Rehearsal(problem, plan, drawn, router).forecast(len(drawn))


def with_forecast(plan: Plan, told: Forecast) -> Plan:
    """The plan with its waits as simulated."""
    predicted = replace(
        plan.predicted,
        max_wait_seconds=told.max_wait_seconds,
        mean_wait_seconds=told.mean_wait_seconds,
        p95_wait_seconds=told.p95_wait_seconds,
        ttft_seconds=told.ttft_seconds,
    )
    return replace(plan, predicted=predicted, bottleneck=with_queue(plan.bottleneck, told.max_wait_seconds))


def waiting_curve(problem: Problem, plan: Plan, router: str = LATE) -> Simulation:
    """One burst, request by request, for the chart of the plan page."""
    return simulate(servers(problem, plan), bursts(problem.workload, problem.policy.seed)[0], router)


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))

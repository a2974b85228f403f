"""The requests of a burst: drawn from a workload, and cut where the fleet is idle in between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.core.memory import Floats
from planner.core.problem import Workload
from planner.core.servers import Server

# A clock that shows more than this loses what tells a slow answer from a fast one: a float has 16 digits.
NEAR_SECONDS = 1e5


@dataclass(frozen=True)
class Requests:
    """Arrival times, which do not fall, and lengths of a burst."""

    arrival_seconds: Floats
    input_tokens: Floats
    output_tokens: Floats


def sample(workload: Workload, rng: np.random.Generator) -> Requests:
    """Fixed or Poisson arrivals, lognormal lengths with the workload's spread."""
    n = workload.requests
    if workload.arrivals == "poisson":
        gaps = rng.exponential(workload.arrival_seconds, n)
        arrivals = np.cumsum(gaps) - gaps[0]
    else:
        arrivals = np.arange(n) * workload.arrival_seconds
    return Requests(
        arrivals,
        _lengths(workload.input_tokens, workload.input_cv, n, rng),
        _lengths(workload.output_tokens, workload.output_cv, n, rng),
    )


def _lengths(mean: float, cv: float, n: int, rng: np.random.Generator) -> Floats:
    variance = np.log1p(cv**2)
    drawn = rng.lognormal(np.log(mean) - variance / 2, np.sqrt(variance), n)
    return np.maximum(1.0, np.rint(drawn) if cv > 0 else drawn)


def busy_periods(fleet: Sequence[Server], requests: Requests) -> list[range]:
    """Parts of a long burst, each of which begins with an idle fleet: its clock may start at zero."""
    arrivals = requests.arrival_seconds.tolist()
    starts = [0]
    if arrivals[-1] - arrivals[0] > NEAR_SECONDS:
        busy_until = arrivals[0]
        for i, (arrival, longest) in enumerate(zip(arrivals, _longest_seconds(fleet, requests), strict=True)):
            if arrival >= busy_until and arrival - arrivals[starts[-1]] > NEAR_SECONDS:
                starts.append(i)
            busy_until = max(arrival, busy_until) + longest
    return [range(*border) for border in zip(starts, [*starts[1:], len(arrivals)], strict=True)]


def _longest_seconds(fleet: Sequence[Server], requests: Requests) -> list[float]:
    """What each request may add to the time that the fleet is busy: every phase on the slowest replica."""
    tokens = requests.input_tokens
    reading = [server for server in fleet if server.role != "decode"]
    prompt = np.max(
        [server.prompt_seconds(tokens) + server.prompt_interval(tokens) for server in reading], axis=0
    )
    handover = np.max([server.handover_seconds(tokens) for server in fleet], axis=0)
    answer = requests.output_tokens * max(max(server.step_seconds) for server in fleet)
    longest: list[float] = (prompt + 2 * handover + answer).tolist()
    return longest

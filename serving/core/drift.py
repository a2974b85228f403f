"""Is the plan still right for the traffic that is seen, and does the fleet do what the plan predicted?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, pstdev
from typing import Any

ENOUGH_REQUESTS = 20
TOLERANCE = 1.5  # a factor; plans differ little below it
CERTAINTY = 3.0  # standard errors between what was planned and what was seen


@dataclass(frozen=True)
class Seen:
    """One request as it was served; empty figures are those it has none of."""

    received_at: float
    prompt_tokens: int | None
    output_tokens: int | None
    first_token_seconds: float | None
    total_seconds: float


@dataclass(frozen=True)
class Drift:
    """One figure that is not what it was planned to be."""

    name: str
    planned: float
    observed: float

    @property
    def factor(self) -> float:
        return self.observed / self.planned


def workload_drift(workload: Mapping[str, Any], requests: Sequence[Seen]) -> list[Drift]:
    """Figures of the workload that changed by more than the tolerance, and not by chance."""
    if len(requests) < ENOUGH_REQUESTS:
        return []
    prompts = [request.prompt_tokens for request in requests if request.prompt_tokens]
    outputs = [request.output_tokens for request in requests if request.output_tokens]
    times = sorted(request.received_at for request in requests)
    gaps = [later - earlier for earlier, later in zip(times, times[1:], strict=False)]
    found = [
        changed("input_tokens", workload["input_tokens"], prompts),
        changed("output_tokens", workload["output_tokens"], outputs),
        changed("arrival_seconds", workload["arrival_seconds"], gaps),
    ]
    return [drift for drift in found if drift is not None]


def prediction_drift(predicted: Mapping[str, Any], requests: Sequence[Seen]) -> list[Drift]:
    """Where the fleet is slower than the plan said; faster is no reason to act."""
    if len(requests) < ENOUGH_REQUESTS:
        return []
    first = [request.first_token_seconds for request in requests if request.first_token_seconds]
    steps = [step for step in map(step_seconds, requests) if step is not None]
    pairs = [("ttft_seconds", first), ("tpot_seconds", steps)]
    return [
        Drift(name, predicted[name], median(values))
        for name, values in pairs
        if values and median(values) > TOLERANCE * predicted[name]
    ]


def step_seconds(request: Seen) -> float | None:
    """Seconds per token after the first."""
    if request.first_token_seconds is None or not request.output_tokens or request.output_tokens < 2:
        return None
    return (request.total_seconds - request.first_token_seconds) / (request.output_tokens - 1)


def changed(name: str, planned: float, values: Sequence[float]) -> Drift | None:
    if len(values) < ENOUGH_REQUESTS - 1 or planned <= 0:
        return None
    mean = fmean(values)
    error = pstdev(values) / math.sqrt(len(values))
    ratio = max(mean / planned, planned / mean) if mean > 0 else math.inf
    if ratio <= TOLERANCE or abs(mean - planned) <= CERTAINTY * error:
        return None
    return Drift(name, planned, mean)

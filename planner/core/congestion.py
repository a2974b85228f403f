"""Waiting time of a burst of requests: the paper's model and ours. All functions work on arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from planner.core.memory import Floats
from planner.core.problem import Workload

SLOWEST = 1e-200  # requests per second: its reciprocal leaves every sum and product here finite


def paper_wait(
    input_tokens: float,
    output_tokens: float,
    prefill_speed: ArrayLike,
    decode_speed: ArrayLike,
    arrival_seconds: float,
) -> Floats:
    """Paper, section 3.3: w = NP/PS + (max(NP/PS, ND/DS) - Ta) while the slower phase lags behind, else 0."""
    with np.errstate(divide="ignore"):
        prefill = input_tokens / np.asarray(prefill_speed, dtype=np.float64)
        phase = np.maximum(prefill, output_tokens / np.asarray(decode_speed, dtype=np.float64))
    return np.where(phase > arrival_seconds, prefill + (phase - arrival_seconds), 0.0)


def burst_wait(
    prefill_rate: ArrayLike, decode_rate: ArrayLike, slots: ArrayLike, workload: Workload
) -> Floats:
    """Longest wait in a burst of R requests, one every Ta (rates in requests per second, hand-over counted).

    Endless where a phase has no replica.
    """
    requests, arrival = workload.requests, workload.arrival_seconds
    prefill_rate, decode_rate = np.asarray(prefill_rate), np.asarray(decode_rate)
    prefill = 1.0 / np.maximum(prefill_rate, SLOWEST)
    decode = 1.0 / np.maximum(decode_rate, SLOWEST)
    filled = np.asarray(slots, dtype=np.float64)
    pace = np.maximum(arrival, prefill)
    held = filled * decode
    behind = (requests - filled) * decode + (1 - workload.output_cv**2) / 2 * held - (requests - 1) * pace
    lags = (requests > filled) & (decode > pace)
    waits = (requests - 1) * np.maximum(0.0, prefill - arrival) + np.where(lags, np.maximum(0.0, behind), 0.0)
    return np.where(np.minimum(prefill_rate, decode_rate) > 0, waits, np.inf)


def mean_queue_seconds(
    rate: float, servers: int, capacity_rate: float, service_cv: float, poisson: bool
) -> float:
    """Allen-Cunneen mean wait of an M/G/k (or D/G/k) queue in steady state; infinite when it is overloaded."""
    load = rate / capacity_rate if capacity_rate > 0 else np.inf
    if load >= 1:
        return float(np.inf)
    service = servers / capacity_rate
    spread = ((1.0 if poisson else 0.0) + service_cv**2) / 2
    return float(spread * load ** (np.sqrt(2 * (servers + 1)) - 1) / (servers * (1 - load)) * service)


@dataclass(frozen=True, order=True)
class Score:
    """How good a plan is; compared field by field, smaller is better."""

    wait_seconds: float
    utilisation: float
    queue_seconds: float
    ttft_seconds: float
    devices: int

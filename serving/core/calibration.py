"""By what factor the measured seconds of a replica differ from what its devices' profiles give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

ENOUGH_REQUESTS = 5
SMALLEST_FACTOR, LARGEST_FACTOR = 0.05, 20.0  # beyond, something else is wrong than a profile
SAME_SHARE = 0.02


@dataclass(frozen=True)
class Observation:
    """One request: what it took, and what was predicted for the devices and for the links between them."""

    seconds: float
    device_seconds: float
    link_seconds: float

    @property
    def factor(self) -> float:
        """What the devices' seconds must be multiplied with; the links were measured apart and stay."""
        return max(self.seconds - self.link_seconds, 0.0) / self.device_seconds


@dataclass(frozen=True)
class Adjustment:
    """The factor of one replica in one phase, with medians over its requests and how far apart those are."""

    factor: float
    requests: int
    measured_seconds: float
    predicted_seconds: float
    error_before: float
    error_after: float

    @property
    def is_needed(self) -> bool:
        return abs(self.factor - 1.0) > SAME_SHARE


def adjustment(observations: Sequence[Observation]) -> Adjustment | None:
    """None when there are too few requests to tell."""
    if len(observations) < ENOUGH_REQUESTS:
        return None
    middle = median(one.factor for one in observations)
    factor = min(max(middle, SMALLEST_FACTOR), LARGEST_FACTOR)
    measured = median(one.seconds for one in observations)
    predicted = median(one.device_seconds + one.link_seconds for one in observations)
    corrected = median(factor * one.device_seconds + one.link_seconds for one in observations)
    return Adjustment(
        factor=factor,
        requests=len(observations),
        measured_seconds=measured,
        predicted_seconds=predicted,
        error_before=abs(predicted - measured) / measured,
        error_after=abs(corrected - measured) / measured,
    )


def together(spans: Sequence[tuple[float, float]]) -> list[float]:
    """For each span how many of them, itself included, ran on average while it did."""
    counts = []
    for start, end in spans:
        shared = sum(max(0.0, min(end, other_end) - max(start, other)) for other, other_end in spans)
        counts.append(shared / (end - start) if end > start else 1.0)
    return counts

"""Which pairs to measure when, what the repeats say, and which link stands out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

FAST_ETHERNET_BYTES_PER_SECOND = 12.5e6
OUTLIER_FRACTION = 0.4


class LinkError(Exception):
    """The output of a link measurement makes no sense."""


@dataclass(frozen=True)
class Measured:
    """One direction: median of the repeats, and (max - min) / median of the bandwidth."""

    bytes_per_second: float
    latency_seconds: float
    spread: float


def rounds(count: int) -> list[list[tuple[int, int]]]:
    """Every pair of `count` devices once, in rounds in which no device is in two pairs (circle method)."""
    seats = list(range(count + count % 2))
    schedule = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        pairs = zip(seats[:half], reversed(seats[half:]), strict=True)
        schedule.append([(min(pair), max(pair)) for pair in pairs if max(pair) < count])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return schedule


def parse_round_trip(text: str) -> float:
    """Median of the client's lines `rtt SECONDS`."""
    round_trips = [float(value) for value in re.findall(r"^rtt ([\d.e-]+)$", text, re.MULTILINE)]
    if not round_trips:
        raise LinkError(f"no round-trip time in {text.strip()[-200:]!r}")
    return median(round_trips)


def parse_measurement(text: str) -> tuple[Measured, Measured]:
    """Upload and download of the client's lines `rtt SECONDS`, `up BYTES SECONDS` and `down BYTES SECONDS`."""
    latency = parse_round_trip(text)
    return _direction(text, "up", latency), _direction(text, "down", latency)


def of_repeats(rates: Sequence[float], latency_seconds: float) -> Measured:
    """What repeats in bytes per second come to."""
    middle = median(rates)
    return Measured(middle, latency_seconds, (max(rates) - min(rates)) / middle)


def outliers(rates: dict[tuple[str, str], float]) -> dict[tuple[str, str], str]:
    """A sentence for each link that is far slower than the lab's median."""
    if len(rates) < 3:
        return {}
    usual = median(rates.values())
    found = {}
    for (source, target), rate in rates.items():
        if rate < OUTLIER_FRACTION * usual:
            guess = (
                "probably a 100 Mb port or cable"
                if _is_fast_ethernet(rate)
                else "a slow port, Wi-Fi or a busy link"
            )
            found[source, target] = f"{source} → {target}: {rate * 8 / 1e6:.0f} Mb/s, {guess}"
    return found


def _direction(text: str, word: str, latency: float) -> Measured:
    repeats = re.findall(rf"^{word} (\d+) ([\d.e-]+)$", text, re.MULTILINE)
    rates = [int(size) / max(float(seconds) - latency, 1e-6) for size, seconds in repeats]
    if not rates:
        raise LinkError(f"no {word} rate in {text.strip()[-200:]!r}")
    return of_repeats(rates, latency)


def _is_fast_ethernet(rate: float) -> bool:
    return 0.7 * FAST_ETHERNET_BYTES_PER_SECOND < rate <= FAST_ETHERNET_BYTES_PER_SECOND


def estimate(first: Sequence[float], second: Sequence[float]) -> float:
    """Rate between two devices guessed from each one's rates to the dashboard: the slower of the two medians."""
    return min(median(first), median(second))

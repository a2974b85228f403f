"""Live numbers of the home page."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from inventory.core.quantities import seconds_text, significant
from serving.models import RequestSample, TrafficSample

WINDOW = timedelta(minutes=15)
FRESH = timedelta(seconds=10)
STALE = timedelta(seconds=15)  # an idle gateway writes its numbers every 10 s
ABSENT = "–"


@dataclass(frozen=True)
class Tile:
    label: str
    value: str
    unit: str
    hint: str
    icon_name: str


def tiles(latest: TrafficSample, now: datetime) -> list[Tile]:
    waits = waiting_seconds(now)
    recent = TrafficSample.objects.filter(at__gt=latest.at - FRESH)
    tokens = sum(sample.output_tokens for sample in recent)
    free = max(0, latest.slots - latest.running)
    p50, p95, longest = (percentile(waits, fraction) for fraction in (0.5, 0.95, 1.0))
    hint = f"p95 {_wait(p95)}, longest {_wait(longest)}" if waits else "no requests in 15 min"
    return [
        Tile("Waiting", str(latest.waiting), "requests", "in the queue now", "hourglass-split"),
        Tile("Running", str(latest.running), "requests", "being answered now", "activity"),
        Tile("Free slots", str(free), f"of {latest.slots}", "", "layers"),
        Tile(
            "Tokens", significant(tokens / FRESH.total_seconds()), "per second", "last 10 s", "speedometer2"
        ),
        Tile("Time in the queue", _wait(p50), "median", hint, "clock-history"),
    ]


def waiting_seconds(now: datetime) -> list[float]:
    """Time in the queue of each request of the window, sorted."""
    samples = RequestSample.objects.filter(received_at__gt=now - WINDOW)
    waits = samples.order_by().values_list("queued_seconds", flat=True)
    return sorted(seconds for seconds in waits if seconds is not None)


def percentile(ordered: list[float], fraction: float) -> float | None:
    """Nearest-rank percentile of sorted values."""
    if not ordered:
        return None
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))]


def _wait(seconds: float | None) -> str:
    return ABSENT if seconds is None else seconds_text(seconds)

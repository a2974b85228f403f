"""What a plan loses without one of its devices: waits, and also capacity and the time to the first token."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from inventory.core.quantities import rate_text, seconds_text, significant
from planner.charts.facts import SAME_SECONDS, SAME_SHARE, difference

Json = dict[str, Any]
CAPACITIES = {
    "decode_tokens_per_second": "capacity",
    "prefill_tokens_per_second": "prompt capacity",
}


def worth_row(name: str, without: Json | None, reason: str, twice_seconds: float | None, own: Json) -> Json:
    """What leaving a device out, or having a second one, would do; `own` and `without` are `predicted` of plans."""
    own_seconds = own["max_wait_seconds"]
    twice = own_seconds if twice_seconds is None else min(twice_seconds, own_seconds)
    return {
        "device": name,
        "without": "no plan" if without is None else seconds_text(without["max_wait_seconds"]),
        "loss": reason if without is None else loss_text(own, without),
        "twice": seconds_text(twice),
        "gain": difference(own_seconds, twice, "no gain found"),
    }


def loss_text(own: Json, without: Json) -> str:
    """The change of the longest wait, and what else gets worse."""
    waits = difference(own["max_wait_seconds"], without["max_wait_seconds"], "")
    losses = " and ".join(_losses(own, without))
    if not losses:
        return waits or "no longer wait, no less capacity, first tokens as early"
    return f"{waits}, {losses}" if waits.endswith("longer") else f"{waits or 'no longer wait'}, but {losses}"


def _losses(own: Json, without: Json) -> Iterator[str]:
    for key, name in CAPACITIES.items():
        if without[key] < own[key] * (1 - SAME_SHARE):
            yield f"{name} falls from {rate_text(own[key])} to {rate_text(without[key])}"
    load = max(without["utilisation"].values())
    if load > 1:
        yield f"requests ask for {significant(load, 3)} times what is left"
    first, later = own["ttft_seconds"], without["ttft_seconds"]
    if later > first * (1 + SAME_SHARE) + SAME_SECONDS:
        yield f"the first token comes after {seconds_text(later)} instead of {seconds_text(first)}"

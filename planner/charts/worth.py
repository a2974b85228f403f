"""What a plan loses without one of its devices and gains with a second one like it, in the same measures."""

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
NO_LOSS = "no longer wait, no less capacity, first tokens as early"
NO_GAIN = "no gain found"


def worth_row(name: str, without: Json | None, reason: str, twice: Json | None, own: Json) -> Json:
    """What leaving a device out, or having a second one, would do; the plans are their `predicted`."""
    is_longer = twice is not None and twice["max_wait_seconds"] > own["max_wait_seconds"] + SAME_SECONDS
    with_twin = own if twice is None or is_longer else twice  # the second one may stand idle
    return {
        "device": name,
        "without": "no plan" if without is None else seconds_text(without["max_wait_seconds"]),
        "loss": reason if without is None else change_text(own, without, "no longer wait", NO_LOSS),
        "twice": seconds_text(with_twin["max_wait_seconds"]),
        "gain": change_text(own, with_twin, "as long a wait", NO_GAIN),
    }


def change_text(own: Json, other: Json, same_wait: str, same: str) -> str:
    """The change of the longest wait, then of capacity and first token: what gets worse behind a `but`."""
    waits = difference(own["max_wait_seconds"], other["max_wait_seconds"], "")
    worse, better = list(_changes(own, other, -1)), list(_changes(own, other, 1))
    if not (waits or worse or better):
        return same
    good = [waits or same_wait, *better]
    if not worse:
        return _listed(good)
    if waits.endswith("longer"):
        return f"{_listed([waits, *worse])}{', but ' + _listed(better) if better else ''}"
    return f"{_listed(good)}, but {' and '.join(worse)}"


def _listed(texts: list[str]) -> str:
    head, *rest = texts
    return f"{head}, {' and '.join(rest)}" if rest else head


def _changes(own: Json, other: Json, sign: int) -> Iterator[str]:
    """What gets better with a `sign` of 1, or worse with one of -1."""
    verb = "rises" if sign > 0 else "falls"
    for key, name in CAPACITIES.items():
        if sign * (other[key] - own[key]) > SAME_SHARE * own[key]:
            yield f"{name} {verb} from {rate_text(own[key])} to {rate_text(other[key])}"
    load = max(other["utilisation"].values())
    if sign < 0 and load > max(1.0, max(own["utilisation"].values())):
        yield f"requests ask for {significant(load, 3)} times what is left"
    first, then = own["ttft_seconds"], other["ttft_seconds"]
    if sign * (first - then) > SAME_SHARE * first + SAME_SECONDS:
        yield f"the first token comes after {seconds_text(then)} instead of {seconds_text(first)}"

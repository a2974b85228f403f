"""What is better and what is worse about one plan beside another, in a sentence for a status line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from inventory.core.quantities import rate_text, seconds_text
from planner.charts.facts import SAME_SECONDS
from planner.charts.tiles import guaranteed_rate

Json = dict[str, Any]
TOLD_SHARE = 0.05  # smaller changes stand in the table alone


def change_sentence(now: Json, then: Json) -> str:
    """The longest wait, and each other headline number that changes by more than 5 %."""
    told = ["Longest wait " + _wait(now["predicted"], then["predicted"]), *_changes(now, then)]
    return "; ".join(told)


def _wait(now: Json, then: Json) -> str:
    before, after = (seconds_text(one["max_wait_seconds"]) for one in (now, then))
    return f"{after}, as planned" if before == after else f"{after} instead of {before}"


def _changes(now: Json, then: Json) -> Iterator[str]:
    first, later = now["predicted"]["ttft_seconds"], then["predicted"]["ttft_seconds"]
    if differs(first, later) and abs(later - first) > SAME_SECONDS:
        word = "later" if later > first else "sooner"
        yield f"first token {word}, after {seconds_text(later)} instead of {seconds_text(first)}"
    slow, fast = guaranteed_rate(now), guaranteed_rate(then)
    if differs(slow, fast):
        word = "faster" if fast > slow else "slower"
        yield f"answers {word}, at least {rate_text(fast)} instead of {rate_text(slow)}"
    before, after = (
        now["predicted"]["decode_tokens_per_second"],
        then["predicted"]["decode_tokens_per_second"],
    )
    if differs(before, after):
        word = "more" if after > before else "less"
        yield f"{word} capacity, {rate_text(after)} instead of {rate_text(before)}"


def differs(before: float, after: float) -> bool:
    return abs(after - before) > TOLD_SHARE * before

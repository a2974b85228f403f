"""The tiles at the top of a plan: waits, speeds and slots, each with what it is for."""

from __future__ import annotations

from typing import Any

from inventory.core.quantities import counted, rate_text, seconds_text
from planner.core.simulate import Simulation
from planner.models import Origin

Json = dict[str, Any]
CLAIMED = "the file claims"
NOT_SIMULATED = "by the formula, not simulated"
AT_LEAST = "Each request gets at least"
SLOWEST = "Slowest answer, simulated"
# A mixed replica answers only while it reads no prompt, so that its answers together are fewer than slots times speed.
PACE_HINTS = {
    "mixed": ("once its prompt is read, all slots busy", "at most, prompts taking the rest of the time"),
    "disaggregated": ("while all slots are busy", "at most, all slots busy"),
}


def headline(plan: Json, origin: Origin = Origin.SEARCHED, burst: Simulation | None = None) -> list[Json]:
    """The tiles at the top of a plan; with one simulated burst also the speed that its slowest answer had."""
    predicted = plan["predicted"]
    serving = [replica for replica in plan["replicas"] if replica["role"] != "prefill"]
    slots = sum(replica["slots"] for replica in serving)
    longest, mean = wait_hints(plan, origin, is_simulated=burst is not None)
    first = "on average, its wait counted"
    together = rate_text(predicted["decode_tokens_per_second"])
    tiles = [
        tile("Longest wait", seconds_text(predicted["max_wait_seconds"]), "hourglass-split", longest),
        tile("Mean wait", seconds_text(predicted["mean_wait_seconds"]), "", mean),
        tile("First token after", seconds_text(predicted["ttft_seconds"]), "lightning", first),
        tile(AT_LEAST, rate_text(guaranteed_rate(plan)), "speedometer2", pace_hint(plan)),
        tile("Requests at once", str(slots), "layers", f"slots of {counted(len(serving), 'replica')}"),
        tile("All requests get", together, "chat-dots", PACE_HINTS[plan["mode"]][1]),
    ]
    if burst is not None:
        slowest = rate_text(burst.slowest_tokens_per_second)
        tiles.insert(4, tile(SLOWEST, slowest, "", "in one burst of this workload"))
    return tiles


def guaranteed_rate(plan: Json) -> float:
    """Tokens per second of an answer of the slowest replica; 0 where a file names no pace."""
    slowest_seconds = max(replica["tpot_seconds"] for replica in plan["replicas"])
    return 1 / slowest_seconds if slowest_seconds else 0.0


def pace_hint(plan: Json) -> str:
    """When the slowest answer is that slow, and the mean where it is another."""
    when = PACE_HINTS[plan["mode"]][0]
    tpot_seconds = plan["predicted"]["tpot_seconds"]
    mean = rate_text(1 / tpot_seconds) if tpot_seconds else ""
    if not mean or mean == rate_text(guaranteed_rate(plan)):
        return when
    return f"{when}; {mean} on average"


def wait_hints(plan: Json, origin: Origin, *, is_simulated: bool) -> tuple[str, str]:
    """Where the longest and the mean wait come from."""
    if origin == Origin.IMPORTED:
        return CLAIMED, CLAIMED
    if origin == Origin.STOPPED and not is_simulated:
        return NOT_SIMULATED, NOT_SIMULATED
    closed = plan["proof"].get("value")
    if origin == Origin.STOPPED and closed is not None:
        return f"simulated; by the formula {seconds_text(closed)}", "simulated"
    return "in queues, simulated", waits_hint(plan["predicted"])


def waits_hint(predicted: Json) -> str:
    if predicted["max_wait_seconds"] == 0:
        return "nobody waits"
    nearly_all, longest = (seconds_text(predicted[name]) for name in ("p95_wait_seconds", "max_wait_seconds"))
    return f"20 of 20 within {longest}" if nearly_all == longest else f"19 of 20 within {nearly_all}"


def tile(label: str, value: str, icon_name: str, hint: str) -> Json:
    amount, _, unit = value.partition(" ")
    if " " in unit:  # such as 1 min 37 s
        amount, unit = value, ""
    return {"label": label, "value": amount, "unit": unit, "icon_name": icon_name, "hint": hint}


def tile_text(shown: Json) -> str:
    """A tile's number as one text: two of them may have different units."""
    return f"{shown['value']} {shown['unit']}".strip()

"""The replicas of a large plan in one short table, before their diagrams."""

from __future__ import annotations

from typing import Any

from inventory.core.quantities import counted, rate_text
from planner.charts.stages import ROLE_LABELS

Json = dict[str, Any]
MOST_DIAGRAMS = 12  # of more replicas the diagrams are folded away
NAMED_DEVICES = 4


def replica_table(plan: Json) -> list[Json]:
    """A row for each replica, empty for a plan whose diagrams can be looked through."""
    replicas = plan["replicas"]
    if len(replicas) <= MOST_DIAGRAMS:
        return []
    return [replica_line(number, replica) for number, replica in enumerate(replicas, 1)]


def replica_line(number: int, replica: Json) -> Json:
    names = [stage["device"] for stage in replica["stages"]]
    more = len(names) - NAMED_DEVICES
    is_prefill = replica["role"] == "prefill"
    key = "prefill_tokens_per_second" if is_prefill else "decode_tokens_per_second"
    return {
        "number": number,
        "role": ROLE_LABELS[replica["role"]],
        "devices": ", ".join(names[:NAMED_DEVICES]) + (f" and {counted(more, 'other')}" if more > 0 else ""),
        "slots": replica["slots"],
        "speed": rate_text(replica[key]),
        "each": "–" if is_prefill else rate_text(1 / replica["tpot_seconds"]),
    }

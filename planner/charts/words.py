"""What the words of a plan mean, for somebody who sees one for the first time."""

from __future__ import annotations

from typing import Any

from inventory.core.quantities import percent_text

Json = dict[str, Any]
ESTIMATED = "Estimated, not measured"  # so begins what a cluster file's note says of such latencies
ROLES = {
    "prefill": (
        "Prefill replica",
        "Only reads prompts. What it has read, the KV cache, it hands over to a decode replica.",
    ),
    "decode": ("Decode replica", "Only writes answers, many at once, from the caches that it is handed."),
    "mixed": (
        "Mixed replica",
        "Reads prompts and writes answers both: a new prompt is read in pieces between the tokens of the answers under "
        "way, which slows them meanwhile. Nothing is handed over.",
    ),
}
STAGE = (
    "Stage",
    "The consecutive blocks of the model that one device works on; a token goes through all stages in turn.",
)
MASTER = (
    "Master",
    "The device of a replica that reads the model file, talks to clients and sends the others their blocks; "
    "it also does the model's ends.",
)
SLOTS = ("Slots", "Requests that a replica works on at once; each has its own place for a context in memory.")
WAIT = (
    "Wait",
    "Time in queues before and between the phases. Reading the prompt and writing the answer do not count as waiting.",
)
EACH_GETS = (
    "Each request gets at least",
    "Tokens per second of one answer under way on the slowest replica, all its slots busy. A mixed replica keeps to it "
    "only while it reads no prompt.",
)
SLOWEST = (
    "Slowest answer, simulated",
    "Tokens per second of the slowest answer in one simulated burst: more than the above while slots stay free.",
)
ALL_GET = (
    "All requests get",
    "Tokens per second of all answers together, at most: what the replicas write when every slot is busy.",
)
SEARCH = [
    (
        "Generation",
        "One round of the genetic algorithm: plans that did well are combined and changed, the best are kept.",
    ),
    (
        "Rounds of the search",
        "The generations, and after them the steps of the local search, which improves the best plans piece by piece.",
    ),
    (
        "Different replicas evaluated",
        "Groups of devices with a role and slots whose speed was worked out; plans are put together from them.",
    ),
    ("Best so far", "The longest wait, by the formula, of the best plan that any generation has found."),
    ("Mean of the generation", "The same over all plans of a generation that keep the limits."),
    (
        "Bound, and how far from the best possible",
        "Proven: no plan waits less than the bound. The best plan is at most this far from it.",
    ),
    ("Seed", "Where the chance in the search starts: the same inputs and seed give the same plan."),
]
FREE_HANDOVER = (
    "Hand-over",
    "Taken as free by this plan's inputs, as in the paper: real waits are longer by the time that caches travel.",
)


def meanings(plan: Json, cluster: Json) -> list[tuple[str, str]]:
    """Terms that this plan's page uses, each with its meaning."""
    roles = {replica["role"] for replica in plan["replicas"]}
    found = [meaning for role, meaning in ROLES.items() if role in roles]
    if plan["mode"] == "disaggregated":
        found.append(handover(plan, cluster))
    return [*found, STAGE, MASTER, SLOTS, WAIT, EACH_GETS, SLOWEST, ALL_GET, *SEARCH]


def handover(plan: Json, cluster: Json) -> tuple[str, str]:
    if not counts_handover(cluster):
        return FREE_HANDOVER
    busy = percent_text(plan["predicted"]["utilisation"]["network"])
    text = (
        f"The caches' way over the network is counted: it keeps the masters' ports busy {busy} of the time."
    )
    return ("Hand-over", text)


def counts_handover(cluster: Json) -> bool:
    """A cluster file that says nothing about it counts the hand-over."""
    return bool(cluster["policy"].get("handover", True))

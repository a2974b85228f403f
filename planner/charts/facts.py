"""What the plan pages say in words and numbers, worked out from an e2llm-plan/1."""

from __future__ import annotations

from typing import Any

from inventory.core.quantities import bytes_text, counted, percent_text, rate_text, seconds_text, significant
from planner.charts.replica_table import replica_table
from planner.charts.stages import stage_rows
from planner.charts.tiles import CLAIMED, headline
from planner.charts.words import ESTIMATED, counts_handover, meanings
from planner.core.explain import QUEUE_SECONDS
from planner.core.objective import QUANTITIES, SIMULATED_WAIT, WAIT
from planner.core.simulate import Simulation
from planner.from_inventory import NOISY_PROFILE, OUTDATED_LINKS
from planner.models import Origin

Json = dict[str, Any]
TIGHT_FRACTION = 0.93
SAME_SECONDS = 0.005
SAME_SHARE = 0.01  # the search counts plans as equal that wait within half a per cent
NAMED_DEVICES = 8
STOPPED_EARLY = "Stopped early: best so far"
BY_FORMULA = "by the formula"
ROLE_WORDS = {"prefill": "prefill", "decode": "decode", "mixed": "mixed"}
TOPOLOGIES = {"star": "every hop goes through the master", "chain": "stages hand on to each other"}


def proof(plan: Json, origin: Origin = Origin.SEARCHED) -> Json:
    """How good the plan is known to be: by its own search, or by what a file says of it."""
    facts = plan["proof"]
    tried = f"{counted(facts['evaluations'], 'different replica')} evaluated, {method_words(facts)}."
    title, text = proof_words(facts)
    if origin == Origin.IMPORTED:
        claim = f"The file claims: {title[0].lower()}{title[1:]}"
        return {
            "tone": "calm",
            "title": claim,
            "text": f"None of this was proven here. The file says: {text} {tried}",
        }
    if origin == Origin.STOPPED:
        return {"tone": "warn", "title": STOPPED_EARLY, "text": f"{text} {tried}"}
    if facts["optimal"] and facts.get("objective") == QUANTITIES[WAIT]:
        text += " Among plans that are equal in this the simulation chose."
    tone = "ok" if facts["optimal"] else "calm" if facts["gap"] is None else "info"
    return {"tone": tone, "title": title, "text": f"{text} {tried}"}


def method_words(facts: Json) -> str:
    """The method that found the plan, and where that proves nothing, what proves it."""
    if facts["optimal"] and facts["bound"] == 0 and facts.get("objective") == QUANTITIES[WAIT]:
        return f"found by the method “{facts['method']}”, proven because no wait is shorter than none"
    return f"method “{facts['method']}”"


def proof_words(facts: Json) -> tuple[str, str]:
    """Title and sentence; plans of an earlier version do not name the quantity or its value."""
    quantity = facts.get("objective") or "longest wait by the formula"
    by = "" if quantity == SIMULATED_WAIT else " by the formula"
    here = "" if facts.get("value") is None else f" ({seconds_text(facts['value'])})"
    if facts["optimal"]:
        return f"Proven best{by}", f"No plan is below this one's {quantity}{here}."
    if facts["gap"] is None:
        return "No bound known", f"A plan with a shorter {quantity} may exist."
    gap = seconds_text(facts["gap"])
    return f"Within {gap} of the best{by}", f"No plan is more than {gap} below this one's {quantity}{here}."


LIMITS = {
    "memory": "Memory",
    "max_blocks": "Most blocks of a device",
    "floor": "Speed of each request",
    "replicas": "Number of replicas",
    "idle": "No device may stand idle",
    "master": "No device may be a master",
}


def refusal_facts(refusal: Json) -> Json:
    """Why there is no plan: the limit in words and how much is missing."""
    return {**refusal, "limit": LIMITS[refusal["limit"]], "missing": shortfall(refusal)}


def shortfall(refusal: Json) -> str:
    """How much is missing, in the unit of the limit."""
    shown = {"bytes": bytes_text, "seconds": seconds_text, "tokens per second": rate_text}
    amount, unit = refusal["shortfall"], refusal["unit"]
    if unit in shown:
        return shown[unit](amount)
    return f"{significant(amount)} {unit.removesuffix('s') if amount == 1 else unit}"


def utilisation_rows(plan: Json) -> list[Json]:
    """A mixed replica does both phases in turn, so that they are busy as one."""
    labels = {"prefill": "Prefill", "network": "Hand-over network", "decode": "Decode"}
    if plan["mode"] == "mixed":
        labels = {"decode": "Prompts and answers"}
    return [
        {
            "label": label,
            "percent": min(100.0, 100 * share),
            "text": f"{percent_text(share)} busy" if share <= 1 else times_text(share),
            "tight": TIGHT_FRACTION < share <= 1,
            "over": share > 1,
        }
        for key, label in labels.items()
        if (share := plan["predicted"]["utilisation"].get(key)) is not None
    ]


def times_text(share: float) -> str:
    return f"asked for {significant(share, 2 if share >= 2 else 3)} times what it can"


def is_relaxed(plan: Json) -> bool:
    """Nobody waits and nothing is asked for more than it can do: what binds the plan is no trouble."""
    predicted = plan["predicted"]
    return predicted["max_wait_seconds"] < QUEUE_SECONDS and max(predicted["utilisation"].values()) <= 1


def memory_rows(plan: Json, cluster: Json) -> list[Json]:
    """Each device of the cluster: what the plan takes from its memory, and what stays free."""
    stages = {
        stage["device"]: (replica, stage) for replica in plan["replicas"] for stage in replica["stages"]
    }
    return [memory_row(device, *stages.get(device["name"], (None, None))) for device in cluster["devices"]]


def memory_row(device: Json, replica: Json | None, stage: Json | None) -> Json:
    gpu_limit, ram_limit = device["gpu_usable_bytes"], device["ram_usable_bytes"]
    gpu, ram = (stage["gpu_bytes"], stage["ram_bytes"]) if stage else (0, 0)
    return {
        "device": device["name"],
        "hardware": device["hardware"],
        "role": replica["role"] if replica else "",
        "gpu": meter(gpu, gpu_limit),
        "ram": meter(ram, ram_limit) if ram else None,
        "free": bytes_text(gpu_limit - gpu),
    }


def meter(used: float, limit: float) -> Json:
    percent = min(100.0, 100 * used / limit) if limit else 0.0
    text = f"{bytes_text(used)} of {bytes_text(limit)}"
    return {"percent": round(percent, 1), "text": text, "tight": percent > 100 * TIGHT_FRACTION}


def workload_rows(cluster: Json) -> list[tuple[str, str]]:
    workload, policy = cluster["workload"], cluster["policy"]
    return [
        ("Prompt", f"{workload['input_tokens']:,} tokens"),
        ("Answer", f"{workload['output_tokens']:,} tokens"),
        ("A request every", f"{seconds_text(workload['arrival_seconds'])}{arrivals_text(workload)}"),
        ("Burst", counted(workload["requests"], "request")),
        ("Context of a slot", f"{workload['context_tokens']:,} tokens"),
        ("Floor", rate_text(policy["min_tokens_per_second"])),
        ("Most slots", f"{policy['max_slots']} in a replica"),
        ("Runtime", f"{policy['runtime']}, {policy['topology']}: {TOPOLOGIES[policy['topology']]}"),
        ("Mixed replicas", "allowed" if policy["allow_mixed"] else "not allowed"),
        ("Hand-over", "counted" if counts_handover(cluster) else "taken as free, as in the paper"),
    ]


def input_rows(cluster: Json) -> list[tuple[str, str]]:
    """Everything that a plan was asked for."""
    return [*fleet_rows(cluster), *workload_rows(cluster)]


def fleet_rows(cluster: Json) -> list[tuple[str, str]]:
    names = [device["name"] for device in cluster["devices"]]
    shown = ", ".join(names[:NAMED_DEVICES])
    more = f" and {counted(len(names) - NAMED_DEVICES, 'other')}" if len(names) > NAMED_DEVICES else ""
    return [("Model", cluster["model"]["name"]), ("Devices", f"{len(names)}: {shown}{more}")]


def arrivals_text(workload: Json) -> str:
    return ", at random" if workload.get("arrivals") == "poisson" else ""


def run_summary(run_plan: Json | None, origin: Origin, *, is_simulated: bool = True) -> Json:
    """A plan in one line of the list."""
    if run_plan is None:
        return {"wait": None, "shape": "", "proof": None, "wait_note": ""}
    roles = [replica["role"] for replica in run_plan["replicas"]]
    counts = [(roles.count(role), label) for role, label in ROLE_WORDS.items() if role in roles]
    return {
        "wait": run_plan["predicted"]["max_wait_seconds"],
        "shape": ", ".join(f"{count} {label}" for count, label in counts),
        "proof": "Imported" if origin == Origin.IMPORTED else proof(run_plan, origin)["title"],
        "wait_note": CLAIMED if origin == Origin.IMPORTED else "" if is_simulated else BY_FORMULA,
    }


def plan_page(
    plan: Json, cluster: Json, origin: Origin = Origin.SEARCHED, burst: Simulation | None = None
) -> Json:
    """Everything that a plan's page shows, without the run around it."""
    return {
        "plan": plan,
        "idle": plan["idle"],
        "used_devices": [stage["device"] for replica in plan["replicas"] for stage in replica["stages"]],
        "tiles": headline(plan, origin, burst),
        "rows": stage_rows(plan, cluster),
        "proof": proof(plan, origin),
        "baselines": baseline_rows(plan),
        "utilisation": utilisation_rows(plan),
        "memory": memory_rows(plan, cluster),
        "inputs": input_rows(cluster),
        "meanings": meanings(plan, cluster),
        "note": cluster.get("note", ""),
        "is_relaxed": is_relaxed(plan),
        "replica_table": replica_table(plan),
        "is_estimated": ESTIMATED in cluster.get("note", ""),
        "has_outdated_links": OUTDATED_LINKS in cluster.get("note", ""),
        "has_noisy_profiles": NOISY_PROFILE in cluster.get("note", ""),
    }


def difference(own_seconds: float, other_seconds: float, same: str) -> str:
    if abs(other_seconds - own_seconds) < SAME_SECONDS:
        return same
    word = "longer" if other_seconds > own_seconds else "shorter"
    return f"{seconds_text(abs(other_seconds - own_seconds))} {word}"


def verdict(left_seconds: float, right_seconds: float) -> str:
    """What the longest waits of two plans say, the right one against the left one."""
    found = difference(left_seconds, right_seconds, "")
    return f"The longest wait of the second is {found}." if found else "Their longest waits are the same."


def baseline_rows(plan: Json) -> list[Json]:
    """Other planners on the same inputs, simulated in the same way."""
    own = plan["predicted"]["max_wait_seconds"]
    return [baseline_row(baseline, own) for baseline in plan["baselines"].values()]


def baseline_waits(plan: Json) -> dict[str, float]:
    """Longest wait in seconds by name, of the planners that find a plan."""
    found = [baseline for baseline in plan["baselines"].values() if baseline["feasible"]]
    return {baseline["label"]: baseline["max_wait_seconds"] for baseline in found}


def baseline_row(baseline: Json, own_seconds: float) -> Json:
    if not baseline["feasible"]:
        return {"label": baseline["label"], "wait": "finds no plan", "ratio": "", "note": ""}
    wait = baseline["max_wait_seconds"]
    return {
        "label": baseline["label"],
        "wait": seconds_text(wait),
        "ratio": waits_ratio(wait, own_seconds),
        "note": baseline_note(baseline, own_seconds),
    }


def baseline_note(baseline: Json, own_seconds: float) -> str:
    """What a baseline does that ours may not; a search takes over every better plan that the policy allows."""
    if not baseline["holds_floor"]:
        return "breaks the floor"
    if baseline["max_wait_seconds"] < own_seconds * (1 - SAME_SHARE) - SAME_SECONDS:
        return "needs mixed replicas or idle devices, which these inputs do not allow"
    return ""


def waits_ratio(wait: float, own_seconds: float) -> str:
    """How another plan's wait compares; a ratio to nearly nothing says nothing."""
    if abs(wait - own_seconds) < SAME_SECONDS:
        return "the same"
    if own_seconds < SAME_SECONDS:
        return f"{seconds_text(wait)} more"
    return f"{significant(wait / own_seconds)} times"

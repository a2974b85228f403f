"""The stage diagram of a plan: every width and sentence worked out here."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from inventory.core.quantities import bytes_text, rate_text, seconds_text
from planner.charts.hops import hop_rows

ROLE_LABELS = {"prefill": "Prefill", "decode": "Decode", "mixed": "Mixed"}
ONE_MEMORY = "in memory"  # of a chip that shares it, or of a file that leaves open what it is
POOL_LABELS = {"gpu": "GPU", "unified": ONE_MEMORY, "cpu": "CPU"}
TIGHT_FRACTION = 0.93

Json = dict[str, Any]


def stage_rows(plan: Json, cluster: Json | None = None) -> list[Json]:
    """One row per replica for `planner/_stages.html`, from an e2llm-plan/1.

    The frozen e2llm-cluster/1, when given, adds hardware names and the bandwidth of each hop. A plan that was not
    searched predicts nothing, and then there are no rows.
    """
    if any("seconds" not in stage for replica in plan["replicas"] for stage in replica["stages"]):
        return []
    hardware = (
        {device["name"]: device.get("hardware", "") for device in cluster["devices"]} if cluster else {}
    )
    bottleneck = plan.get("bottleneck") or {}
    rows = [
        _replica_row(
            number, replica, hardware, cluster, bottleneck if bottleneck.get("replica") == number else {}
        )
        for number, replica in enumerate(plan["replicas"])
    ]
    for row, span in zip(rows, spans([len(row["stages"]) for row in rows]), strict=True):
        row["span"] = span
    return rows


def spans(n_stages: list[int]) -> list[int]:
    """Columns of six that each replica takes: short ones share a row that is wide enough."""
    found: list[int] = []
    for number, group in groupby(n_stages):
        length = len(list(group))
        in_threes = length // 3 * 3 if number == 1 else 0
        if length % 3 == 1 and in_threes:
            in_threes -= 3  # four in two pairs, not three and one
        in_pairs = (length - in_threes) // 2 * 2 if number <= 2 else 0
        found += [2] * in_threes + [3] * in_pairs + [6] * (length - in_threes - in_pairs)
    for left in range(len(found) - 1):
        both = slice(left, left + 2)
        if found[both] == [6, 6] and sorted(n_stages[both]) == [1, 2]:
            found[both] = [2, 4] if n_stages[left] == 1 else [4, 2]
    return found


def _replica_row(number: int, replica: Json, hardware: Json, cluster: Json | None, bottleneck: Json) -> Json:
    stages = replica["stages"]
    slowest_seconds = max(stage["seconds"] for stage in stages)
    pools = _main_pools(cluster)
    master = next((stage["device"] for stage in stages if stage["master"]), stages[0]["device"])
    *hops, way_back = hop_rows([stage["device"] for stage in stages], master, cluster, bottleneck)
    rows = []
    first_block = 0
    for stage, hop in zip(stages, hops, strict=True):
        row = _stage_row(stage, first_block, slowest_seconds, bottleneck)
        row["hardware"] = hardware.get(stage["device"], "")
        row |= _pool(pools.get(stage["device"], "gpu"))
        row["per_text"] = _of_one_pass(replica)
        row["hop"] = hop
        rows.append(row)
        first_block += row["n_blocks"]
    return {
        "number": number + 1,
        "role": replica["role"],
        "role_label": ROLE_LABELS[replica["role"]],
        "letter": replica["role"][0].upper(),
        "is_bottleneck": bool(bottleneck),
        "n_blocks": first_block,
        "numbers": _replica_numbers(replica),
        "stages": rows,
        "way_back": way_back,
    }


def _replica_numbers(replica: Json) -> list[Json]:
    """A mixed replica reads prompts between the tokens: its speed over all the time is not that of one answer."""
    is_mixed = replica["role"] == "mixed"
    numbers = [{"label": "Slots", "text": str(replica["slots"])}]
    if replica["role"] != "decode":
        label = "Prefill, while it reads" if is_mixed else "Prefill"
        numbers.append({"label": label, "text": rate_text(replica["prefill_tokens_per_second"])})
    if replica["role"] != "prefill":
        label = "Decode, prompts between" if is_mixed else "Decode"
        numbers.append({"label": label, "text": rate_text(replica["decode_tokens_per_second"])})
        label = "Per token, while it answers" if is_mixed else "Per token"
        numbers.append({"label": label, "text": seconds_text(replica["tpot_seconds"])})
    text = f"{seconds_text(replica['pass_seconds'])} {_of_one_pass(replica)}"
    return [*numbers, {"label": "All stages", "text": text}]


def _of_one_pass(replica: Json) -> str:
    """What goes through the stages at once, and what their seconds are for."""
    if replica["role"] == "prefill":
        return "per prompt"
    tokens = replica["micro_batch"]
    return "per token" if tokens == 1 else f"per step of {tokens} tokens"


def _main_pools(cluster: Json | None) -> dict[str, str]:
    """Main pool of each device; empty where the file leaves open what its one memory is."""
    devices = cluster["devices"] if cluster else []
    return {
        device["name"]: device.get("main_pool", "gpu" if device["ram_usable_bytes"] else "")
        for device in devices
    }


def _pool(pool: str) -> Json:
    return {"pool_label": POOL_LABELS.get(pool, ONE_MEMORY), "pool_class": "cpu" if pool == "cpu" else "gpu"}


def _stage_row(stage: Json, first_block: int, slowest_seconds: float, bottleneck: Json) -> Json:
    gpu_blocks, cpu_blocks = stage["gpu_blocks"], stage["cpu_blocks"]
    n_blocks = gpu_blocks + cpu_blocks
    is_bottleneck = stage["device"] == bottleneck.get("device") and "link" not in str(bottleneck.get("what"))
    return {
        "device": stage["device"],
        "is_master": stage["master"],
        "first_block": first_block,
        "first_cpu_block": first_block + gpu_blocks,
        "n_blocks": n_blocks,
        "blocks_text": _blocks_text(first_block, n_blocks),
        "gpu_blocks": gpu_blocks,
        "cpu_blocks": cpu_blocks,
        "gpu_percent": _percent(gpu_blocks, n_blocks),
        "cpu_percent": _percent(cpu_blocks, n_blocks),
        "seconds": stage["seconds"],
        "seconds_text": seconds_text(stage["seconds"]),
        "time_percent": _percent(stage["seconds"], slowest_seconds),
        "memory": _memory_row(stage),
        "is_bottleneck": is_bottleneck,
    }


def _blocks_text(first_block: int, n_blocks: int) -> str:
    if n_blocks == 0:
        return "no blocks"
    if n_blocks == 1:
        return f"block {first_block}"
    return f"blocks {first_block}–{first_block + n_blocks - 1}"


def _memory_row(stage: Json) -> Json | None:
    used, limit = stage.get("gpu_bytes"), stage.get("gpu_limit_bytes")
    if used is None or not limit:
        return None
    ram = stage.get("ram_bytes") or 0
    text = f"{bytes_text(used)} of {bytes_text(limit)}"
    return {
        "percent": _percent(used, limit),
        "text": f"{text} + {bytes_text(ram)} RAM" if ram else text,
        "is_tight": used > TIGHT_FRACTION * limit,
    }


def _percent(part: float, whole: float) -> float:
    return round(min(100.0, 100 * part / whole), 1) if whole else 0.0

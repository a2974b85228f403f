"""What the stage diagram shows, from a plan and the cluster it was made for."""

from __future__ import annotations

from typing import Any

import pytest

from planner.charts import stage_rows
from planner.charts.stages import spans


def stage(device: str, gpu_blocks: int, cpu_blocks: int = 0, *, master: bool = False) -> dict[str, Any]:
    return {
        "device": device,
        "master": master,
        "gpu_blocks": gpu_blocks,
        "cpu_blocks": cpu_blocks,
        "seconds": 0.028,
        "gpu_bytes": 9_100_000_000,
        "gpu_limit_bytes": 9_600_000_000,
        "ram_bytes": 0,
    }


def plan(*stages: dict[str, Any], bottleneck: dict[str, Any] | None = None) -> dict[str, Any]:
    replica = {
        "role": "decode",
        "slots": 2,
        "micro_batch": 2,
        "stages": list(stages),
        "pass_seconds": 0.05,
        "tpot_seconds": 0.05,
    }
    rates = {"prefill_tokens_per_second": 0.0, "decode_tokens_per_second": 40.0}
    return {"replicas": [{**replica, **rates}], "bottleneck": bottleneck}


CLUSTER: dict[str, Any] = {
    "policy": {"topology": "star"},
    "devices": [
        {"name": "Dev.1", "hardware": "RTX 5070", "ram_usable_bytes": 60_000_000_000},
        {"name": "Dev.5", "hardware": "Apple M1", "ram_usable_bytes": 0},
    ],
    "links": {
        "default": {"bytes_per_second": 115e6, "latency_seconds": 3.5e-4},
        "pairs": [{"a": "Dev.5", "b": "Dev.1", "bytes_per_second": 11.75e6, "latency_seconds": 1e-3}],
    },
}
TWO_STAGES = plan(stage("Dev.1", 10, 5, master=True), stage("Dev.5", 9))


def test_block_ranges_follow_the_pipeline() -> None:
    (replica,) = stage_rows(TWO_STAGES)
    assert [row["blocks_text"] for row in replica["stages"]] == ["blocks 0–14", "blocks 15–23"]


def test_the_map_of_blocks_has_each_part_where_it_lies() -> None:
    (replica,) = stage_rows(TWO_STAGES)
    assert [(row["first_block"], row["first_cpu_block"]) for row in replica["stages"]] == [(0, 10), (15, 24)]


def test_the_two_tone_bar_is_the_share_of_blocks() -> None:
    first = stage_rows(TWO_STAGES)[0]["stages"][0]
    assert (first["gpu_percent"], first["cpu_percent"]) == (66.7, 33.3)


def test_a_hop_shows_the_measured_pair_and_not_the_default() -> None:
    first, second = stage_rows(TWO_STAGES, CLUSTER)[0]["stages"]
    assert first["hop"] is None
    assert (second["hop"]["bandwidth_text"], second["hop"]["latency_text"]) == ("94 Mb/s", "1 ms")


def test_in_a_star_every_hop_goes_through_the_master_and_the_last_one_back_to_it() -> None:
    three = plan(stage("Dev.1", 10, master=True), stage("Dev.5", 7), stage("Dev.7", 7))
    (star,) = stage_rows(three, CLUSTER)
    hops = [row["hop"]["text"] for row in star["stages"][1:]]
    assert hops == ["hop from Dev.1 to Dev.5", "hop from Dev.5 through the master Dev.1 to Dev.7"]
    between = star["stages"][2]["hop"]
    assert (between["bandwidth_text"], between["latency_text"]) == ("94 Mb/s, then 920 Mb/s", "1.35 ms")
    assert star["way_back"]["text"] == "hop from Dev.7 to Dev.1"
    (chain,) = stage_rows(three, {**CLUSTER, "policy": {"topology": "chain"}})
    assert chain["stages"][2]["hop"]["text"] == "hop from Dev.5 to Dev.7"
    assert chain["way_back"] is None


def test_a_device_with_one_memory_does_not_say_gpu() -> None:
    first, second = stage_rows(TWO_STAGES, CLUSTER)[0]["stages"]
    assert (first["pool_label"], second["pool_label"]) == ("GPU", "in memory")


@pytest.mark.parametrize(
    ("pool", "label", "colour"),
    [("gpu", "GPU", "gpu"), ("unified", "in memory", "gpu"), ("cpu", "CPU", "cpu")],
)
def test_the_main_pool_is_called_what_it_is(pool: str, label: str, colour: str) -> None:
    devices = [CLUSTER["devices"][0], {**CLUSTER["devices"][1], "main_pool": pool}]
    second = stage_rows(TWO_STAGES, {**CLUSTER, "devices": devices})[0]["stages"][1]
    assert (second["pool_label"], second["pool_class"]) == (label, colour)


def test_only_the_bottleneck_is_outlined() -> None:
    limit = {"replica": 0, "device": "Dev.5", "what": "stage", "seconds": 0.028, "text": "Dev.5 is slowest."}
    rows = stage_rows(plan(*TWO_STAGES["replicas"][0]["stages"], bottleneck=limit))[0]["stages"]
    assert [row["is_bottleneck"] for row in rows] == [False, True]


def test_memory_near_its_limit_is_marked() -> None:
    memory = stage_rows(TWO_STAGES)[0]["stages"][0]["memory"]
    assert memory == {"percent": 94.8, "text": "9.1 GB of 9.6 GB", "is_tight": True}


@pytest.mark.parametrize("length", range(1, 12))
def test_small_replicas_fill_their_rows(length: int) -> None:
    found = spans([1] * length)
    assert sum(found) % 6 == 0
    assert len(found) == length


def test_long_replicas_have_a_row_of_their_own() -> None:
    assert spans([1, 1, 3, 1]) == [3, 3, 6, 6]


def test_a_lone_stage_stands_beside_a_pair() -> None:
    assert spans([1, 2]) == [2, 4]
    assert spans([2, 1, 2]) == [4, 2, 6]
    assert spans([1, 1, 2]) == [3, 3, 6]


def test_pairs_stand_side_by_side() -> None:
    assert spans([2, 2, 2]) == [3, 3, 6]
    assert spans([3, 2, 2, 1]) == [6, 3, 3, 6]


@pytest.mark.parametrize(
    ("role", "micro_batch", "text"),
    [("prefill", 1, "per prompt"), ("decode", 1, "per token"), ("mixed", 4, "per step of 4 tokens")],
)
def test_seconds_of_a_stage_say_what_they_are_for(role: str, micro_batch: int, text: str) -> None:
    document = plan(stage("Dev.1", 24, master=True))
    document["replicas"][0] |= {"role": role, "micro_batch": micro_batch}
    row = stage_rows(document)[0]
    assert row["stages"][0]["per_text"] == text
    assert row["numbers"][-1] == {"label": "All stages", "text": f"50 ms {text}"}


def test_the_speeds_of_a_mixed_replica_say_what_they_leave_out() -> None:
    document = plan(stage("Dev.1", 24, master=True))
    document["replicas"][0]["role"] = "mixed"
    labels = [number["label"] for number in stage_rows(document)[0]["numbers"]]
    assert labels[1:4] == [
        "Prefill, while it reads",
        "Decode, prompts between",
        "Per token, while it answers",
    ]

"""What a deployment's page says that its devices should hold, beside what a real load log said."""

from __future__ import annotations

from typing import Any

import pytest

from inventory.core.model_fit import Setting, memory_of
from inventory.core.model_shape import BlockShape, ModelShape
from serving.core.stage_memory import PlannedMemory, blocks_of, held_bytes, stage_on, weight_limit
from tests.planner_app.conftest import shape

# llama.cpp 0.10068.0 with SmolLM2-135M-Instruct (Q4_1), 2,048 tokens a slot, files mapped.
LOGGED = {
    "alone": {"model_bytes": 96_573_850, "kv_bytes": 188_743_680, "compute_bytes": 22_554_870 + 786_432},
    "worker": {"model_bytes": 53_194_260, "kv_bytes": 75_497_472, "compute_bytes": 16_001_270},
    "master": {"model_bytes": 96_573_850, "kv_bytes": 18_874_368, "compute_bytes": 18_360_566 + 393_216},
}


def stage(device: str, blocks: int, *, master: bool, cpu_blocks: int = 0) -> dict[str, Any]:
    return {"device": device, "master": master, "gpu_blocks": blocks, "cpu_blocks": cpu_blocks}


REPLICAS = [
    {"slots": 4, "stages": [stage("alone", 30, master=True)]},
    {"slots": 2, "stages": [stage("worker", 24, master=False), stage("master", 6, master=True)]},
]


@pytest.mark.parametrize(("index", "name"), [(0, "alone"), (1, "worker"), (1, "master")])
def test_each_device_holds_what_is_planned_for_it(
    index: int, name: str, model_bytes: tuple[dict[str, Any], int]
) -> None:
    plan = {"mode": "mixed", "replicas": REPLICAS}
    planned = PlannedMemory.of(model_bytes[0], plan, {"devices": []}, 2048)
    part = stage_on(REPLICAS[index], name)
    assert part is not None
    held = held_bytes({"CPU": LOGGED[name]}, weight_limit(planned.shape, part))
    assert planned.bytes_on(index, name) == pytest.approx(held, rel=0.005)


def test_a_masters_gpu_has_the_last_blocks_and_a_copy_of_a_tied_embedding() -> None:
    small = BlockShape("full", {}, 1000, 0, 8, None, 0)
    large = BlockShape("full", {}, 5000, 0, 8, None, 0)
    made = shape(blocks=(small,) * 3 + (large,) * 3, is_tied=True, weight_bytes=100_018_000)
    stages = [stage("gpu", 2, master=True, cpu_blocks=1), stage("worker", 3, master=False)]
    plan = {"mode": "mixed", "replicas": [{"slots": 1, "stages": stages}]}
    on_gpu = PlannedMemory(made, plan, 256, frozenset({"gpu"}))
    on_cpu = PlannedMemory(made, plan, 256, frozenset())
    assert on_gpu.blocks_on(stages, "gpu") == [small, large, large]
    assert on_cpu.blocks_on(stages, "gpu") == [small] * 3
    assert on_gpu.bytes_on(0, "gpu") - on_cpu.bytes_on(0, "gpu") == 8000 + made.embedding_bytes
    assert sum(map(blocks_of, stages)) == len(made.blocks)


def test_a_model_on_one_device_takes_what_its_own_page_says() -> None:
    made: ModelShape = shape()
    replica = {"slots": 2, "stages": [stage("one", len(made.blocks), master=True)]}
    planned = PlannedMemory(made, {"mode": "mixed", "replicas": [replica]}, 1024, frozenset())
    assert planned.bytes_on(0, "one") == memory_of(made, Setting(1024, 2)).total_bytes

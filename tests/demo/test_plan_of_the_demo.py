"""The memory that the demo gives its hosts makes the plan that it wants to show."""

from __future__ import annotations

from pathlib import Path

from benchmarks.memory import shape_at
from demo.drive import POLICY, USABLE_BYTES, WORKLOAD
from planner.core.problem import Problem
from planner.core.search import SearchSettings, find_plan
from planner.from_inventory import model_entry

DECODE = {"micro_batch": [1, 8], "gpu_block_seconds": [0.0008, 0.002]}
PREFILL = {"tokens": [64, 512], "gpu_block_seconds": [0.006, 0.05]}
ENDS = {"cpu_block_seconds": None, "head_seconds": [0.002, 0.004]}


def test_one_replica_lives_on_box_1_and_one_spans_the_other_two(small_model: Path) -> None:
    shape = shape_at(small_model)
    hosts = [
        {
            "name": name,
            "hardware": "one core",
            "kind": name,
            "gpu_usable_bytes": usable,
            "ram_usable_bytes": 0,
            "decode": DECODE | ENDS,
            "prefill": PREFILL | ENDS,
        }
        for name, usable in USABLE_BYTES.items()
    ]
    problem = Problem.from_dict(
        {
            "format": "e2llm-cluster/1",
            "note": "",
            "model": model_entry("SmolLM2", shape, 2048),
            "workload": WORKLOAD,
            "policy": POLICY,
            "links": {"default": {"bytes_per_second": 5e8, "latency_seconds": 1e-4}},
            "devices": hosts,
        }
    )
    plan = find_plan(problem, SearchSettings(compare=False))
    used = {frozenset(stage.device for stage in replica.stages) for replica in plan.replicas}
    assert used == {frozenset({"box-1"}), frozenset({"box-2", "box-3"})}

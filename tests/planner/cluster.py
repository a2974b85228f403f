"""Clusters for the planner's tests: the paper's eight devices, and small ones made of round numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from planner.core.problem import Device, LatencyTable, Link, ModelShape, Policy, Problem, Workload

DATA = Path(__file__).parents[2] / "planner" / "data"
GPT_OSS, QWEN = "gpt-oss-20b", "qwen3-30b-a3b-q4_k_m"
FREE = Link(1e30, 0.0)
LAN = Link(115e6, 0.00035)


def paper_document(model: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((DATA / f"{model}.cluster.json").read_text())
    return document


def paper_problem(model: str, *numbers: int, **policy: Any) -> Problem:
    """The paper's cluster, or only those of its devices; `policy` overrides the file's."""
    problem = Problem.from_dict(paper_document(model))
    devices = tuple(problem.devices[number - 1] for number in numbers) or problem.devices
    return replace(problem, devices=devices, policy=replace(problem.policy, **policy))


def with_workload(problem: Problem, **workload: Any) -> Problem:
    return replace(problem, workload=replace(problem.workload, **workload))


def table(seconds: float, *, head: float = 0.0, per_batch: float = 0.0) -> LatencyTable:
    """A block takes `seconds` at batch 1 and `per_batch` more for each further sequence, on the GPU only."""
    blocks = (seconds, seconds + 63 * per_batch)
    return LatencyTable((1.0, 64.0), blocks, None, (head, head))


def device(name: str, seconds: float, *, memory: float = 1e12, head: float = 0.0, **more: Any) -> Device:
    decode = more.pop("decode", table(seconds, head=head))
    prefill = more.pop("prefill", table(seconds, head=head))
    return Device(name, more.pop("kind", name), memory, more.pop("ram", 0.0), decode, prefill, **more)


def model(blocks: int, **sizes: Any) -> ModelShape:
    given: dict[str, Any] = {
        "name": "round",
        "blocks": blocks,
        "embedding_length": 1,
        "block_bytes": 1.0,
        "block_resident_bytes": 0.0,
        "kv_slot_block_bytes": 0.0,
        "output_bytes": 0.0,
        "embedding_bytes": 0.0,
        "logits_buffer_bytes": 0.0,
        "slot_overhead_bytes": 0.0,
        "kv_handoff_bytes_per_token": 0.0,
        "kv_handoff_bytes_per_request": 0.0,
    }
    return ModelShape(**{**given, **sizes})


def problem(devices: Sequence[Device], *, blocks: int = 10, **changes: Any) -> Problem:
    """A problem of round numbers; `changes` go to the field of that name in model, workload or policy."""
    workload: dict[str, Any] = {
        "input_tokens": 600,
        "output_tokens": 300,
        "arrival_seconds": 0.1,
        "requests": 100,
        "context_tokens": 1024,
    }
    policy: dict[str, Any] = {
        "min_tokens_per_second": 1.0,
        "max_slots": 8,
        "runtime": "serial",
        "topology": "star",
        "allow_mixed": False,
        "allow_idle": True,
    }
    links = changes.pop("links", FREE), changes.pop("pairs", ())
    shape = changes.pop("model", None) or model(blocks)
    for given in (workload, policy):
        given.update({key: changes.pop(key) for key in list(changes) if key in given})
    policy.update(changes)
    return Problem(shape, Workload(**workload), Policy(**policy), tuple(devices), *links)


def random_problem(rng: np.random.Generator, n_devices: int, **changes: Any) -> Problem:
    """Different devices, some with experts in RAM, some that hold only a part of the model."""
    devices = []
    for k in range(n_devices):
        seconds = float(rng.uniform(0.001, 0.02))
        ram = float(rng.choice([0.0, 50.0]))
        cpu = tuple(seconds * s for s in (3.0, 40.0)) if ram else None
        decode = LatencyTable((1.0, 32.0), (seconds, 10 * seconds), cpu, (0.002, 0.004))
        prompt = tuple(seconds * s for s in (20.0, 80.0))
        slow = tuple(seconds * s for s in (90.0, 300.0)) if ram else None
        prefill = LatencyTable((64.0, 1024.0), prompt, slow, (0.002, 0.004))
        memory = float(rng.uniform(3.0, 30.0))
        devices.append(Device(f"d{k}", f"k{k}", memory, ram, decode, prefill))
    shape = model(
        8,
        block_bytes=2.0,
        block_resident_bytes=0.4,
        kv_slot_block_bytes=0.1,
        output_bytes=0.5,
        embedding_bytes=0.5,
        embedding_length=1024,
        kv_handoff_bytes_per_token=1e5,
    )
    return problem(devices, model=shape, links=LAN, **{"min_tokens_per_second": 2.0, **changes})


def linked(problem: Problem, rng: np.random.Generator) -> Problem:
    """Most of the devices on links of their own."""
    names = [device.name for device in problem.devices]
    pairs = [
        (a, b, Link(float(rng.uniform(1e5, 1e8)), float(rng.uniform(0.0, 0.005))))
        for a, b in combinations(names, 2)
        if rng.random() < 0.7
    ]
    return replace(problem, pairs=tuple(pairs))

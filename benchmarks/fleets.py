"""Fleets for the planner's benchmarks: the paper's devices, varied at random so that no two are alike."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from planner.core.problem import Device, LatencyTable, Problem

DATA = Path(__file__).parents[1] / "planner" / "data"
GPT_OSS, QWEN = "gpt-oss-20b", "qwen3-30b-a3b-q4_k_m"


def paper(model: str) -> Problem:
    return Problem.from_dict(json.loads((DATA / f"{model}.cluster.json").read_text()))


def with_policy(problem: Problem, runtime: str, *, allow_mixed: bool) -> Problem:
    """The serial runtime hops in a star (llama.cpp), the overlapped one in a chain (the paper)."""
    topology = "star" if runtime == "serial" else "chain"
    policy = replace(problem.policy, runtime=runtime, topology=topology, allow_mixed=allow_mixed)
    return replace(problem, policy=policy)


def loaded(problem: Problem, requests: int, arrival_seconds: float) -> Problem:
    workload = replace(problem.workload, requests=requests, arrival_seconds=arrival_seconds)
    return replace(problem, workload=replace(workload, input_cv=0.25, output_cv=0.4))


def distinct(model: str, n_devices: int, seed: int) -> Problem:
    """Devices of the paper's kinds, each with its own speed (0.7 to 1.4) and memory (0.8 to 1.3)."""
    problem, rng = paper(model), np.random.default_rng(seed)
    devices = []
    for k in range(n_devices):
        like = problem.devices[int(rng.integers(len(problem.devices)))]
        devices.append(_varied(like, k, float(rng.uniform(0.7, 1.4)), float(rng.uniform(0.8, 1.3))))
    return replace(problem, devices=tuple(devices))


def of_five_kinds(model: str, n_devices: int) -> Problem:
    problem = paper(model)
    kinds = [problem.devices[k] for k in (0, 1, 2, 4, 6)]
    devices = tuple(replace(kinds[k % 5], name=f"d{k}") for k in range(n_devices))
    return replace(problem, devices=devices)


def _varied(like: Device, number: int, slower: float, memory: float) -> Device:
    return replace(
        like,
        name=f"d{number}",
        kind=f"k{number}",
        gpu_usable_bytes=like.gpu_usable_bytes * memory,
        decode=_stretched(like.decode, slower),
        prefill=_stretched(like.prefill, slower),
    )


def _stretched(table: LatencyTable, slower: float) -> LatencyTable:
    cpu = table.cpu_block_seconds
    return replace(
        table,
        gpu_block_seconds=tuple(slower * seconds for seconds in table.gpu_block_seconds),
        cpu_block_seconds=None if cpu is None else tuple(slower * seconds for seconds in cpu),
    )

"""A plan's replicas as servers of requests: what the simulator needs of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from planner.core.latency import ACTIVATION_BYTES, PREFILL_PIECE_TOKENS, hop_count, interpolate, link_seconds
from planner.core.memory import Floats
from planner.core.plan import Plan, Replica
from planner.core.problem import Problem


@dataclass(frozen=True)
class Server:
    """One replica under load.

    `step_seconds[busy]` is the time between two tokens of each of the `busy` requests. A prompt of `x` tokens keeps
    the replica for `prompt_interval(x)` and is done after `prompt_seconds(x)`.
    """

    role: str
    slots: int
    step_seconds: tuple[float, ...]
    prompt_seconds: Callable[[Floats], Floats]
    prompt_interval: Callable[[Floats], Floats]
    handover_seconds: Callable[[Floats], Floats]
    piece_tokens: int = PREFILL_PIECE_TOKENS


def servers(problem: Problem, plan: Plan) -> list[Server]:
    return [_server(problem, replica) for replica in plan.replicas]


def _server(problem: Problem, replica: Replica) -> Server:
    def prompt(tokens: Floats) -> Floats:
        stages, hops = _phase(problem, replica, "prefill", tokens)
        return np.asarray(stages.sum(axis=0) + hops.sum(axis=0))

    def interval(tokens: Floats) -> Floats:
        if problem.policy.runtime == "serial":
            return prompt(tokens)
        stages, hops = _phase(problem, replica, "prefill", tokens)
        return np.asarray(np.concatenate([stages, hops]).max(axis=0))

    return Server(
        role=replica.role,
        slots=replica.slots,
        step_seconds=_steps(problem, replica),
        prompt_seconds=prompt,
        prompt_interval=interval,
        handover_seconds=_handover(problem, replica),
    )


def _phase(problem: Problem, replica: Replica, phase: str, batch: Floats) -> tuple[Floats, Floats]:
    """Seconds of each stage and of each hop for batches of sequences or tokens: [stage, batch], [hop, batch]."""
    devices = {device.name: device for device in problem.devices}
    rows = []
    for stage in replica.stages:
        device = devices[stage.device]
        table = device.prefill if phase == "prefill" else device.decode
        row = stage.gpu_blocks * interpolate(table, table.gpu_block_seconds, batch)
        if stage.cpu_blocks:
            assert table.cpu_block_seconds is not None, (
                "a plan puts blocks in RAM only where that was measured"
            )
            row = row + stage.cpu_blocks * interpolate(table, table.cpu_block_seconds, batch)
        if stage.master:
            row = row + interpolate(table, table.head_seconds, batch)
        rows.append(row)
    return np.stack(rows), _hops(problem, replica, batch)


def _hops(problem: Problem, replica: Replica, batch: Floats) -> Floats:
    size = batch * problem.model.embedding_length * ACTIVATION_BYTES
    master = replica.master.device
    if problem.policy.topology == "star":
        pairs = [(master, name) for name in replica.devices if name != master for _ in range(2)]
    else:
        pairs = list(zip(replica.devices, replica.devices[1:], strict=False))
    assert len(pairs) == hop_count(len(replica.stages), problem.policy.topology)
    if not pairs:
        return np.zeros((1, len(batch)))
    return np.stack([link_seconds(size, problem.link(a, b)) for a, b in pairs])


def _steps(problem: Problem, replica: Replica) -> tuple[float, ...]:
    """Seconds per token with 0, 1, ... slots busy."""
    if replica.role == "prefill":
        return (0.0,)
    busy = np.arange(1, replica.slots + 1, dtype=np.float64)
    if problem.policy.runtime == "serial":
        stages, hops = _phase(problem, replica, "decode", busy)
        return (0.0, *(stages.sum(axis=0) + hops.sum(axis=0)).tolist())
    under_way = np.minimum(busy, len(replica.stages))
    stages, hops = _phase(problem, replica, "decode", np.ceil(busy / under_way))
    slowest = np.concatenate([stages, hops]).max(axis=0)
    return (0.0, *np.maximum(stages.sum(axis=0) + hops.sum(axis=0), under_way * slowest).tolist())


def _handover(problem: Problem, replica: Replica) -> Callable[[Floats], Floats]:
    """Seconds that a KV cache keeps the port of the replica's master busy, its workers' shares moved twice."""
    master = replica.master
    share = 1.0 - master.blocks / problem.model.blocks
    port = problem.nic_bytes_per_second(master.device)
    model, counted = problem.model, problem.policy.handover and replica.role != "mixed"

    def seconds(tokens: Floats) -> Floats:
        size = model.kv_handoff_bytes_per_token * tokens + model.kv_handoff_bytes_per_request
        return size / port * (1.0 + share) * counted

    return seconds

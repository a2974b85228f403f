"""Seconds of a stage, a hop and a step, from measured tables."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from planner.core.memory import BlockSums, Floats, Ints, block_sums, gpu_blocks
from planner.core.problem import Device, LatencyTable, Link, Problem

ACTIVATION_BYTES = 4  # activations cross the network as 32-bit floats
PREFILL_PIECE_TOKENS = 512  # llama.cpp's micro-batch of prompt tokens


def interpolate(table: LatencyTable, column: tuple[float, ...], at: Floats) -> Floats:
    """The column at any batch or prompt length; past the last measured point it goes on with the last slope."""
    x, y = np.array(table.points), np.array(column)
    inside = np.interp(at, x, y)
    slope = max(0.0, (y[-1] - y[-2]) / (x[-1] - x[-2])) if len(x) > 1 else y[-1] / x[-1]
    return np.asarray(inside + slope * np.maximum(0.0, at - x[-1]))


def link_seconds(activation_bytes: Floats, link: Link) -> Floats:
    """Time for one micro-batch to cross a link: tau = A / B + latency (paper, section 3.2)."""
    return activation_bytes / link.bytes_per_second + link.latency_seconds


def hop_count(stages: int, topology: str) -> int:
    """In llama.cpp every worker hands its result back to the master: a star has two hops for each worker."""
    return 2 * (stages - 1) if topology == "star" else stages - 1


@dataclass(frozen=True)
class StageTable:
    """What one device kind needs as a stage of n blocks: axes [worker or master, operating point, n]."""

    seconds: Floats
    gpu_blocks: NDArray[np.int64]

    @cached_property
    def most_blocks(self) -> Ints:
        """Largest n that fits at each operating point: [worker or master, operating point]."""
        n = np.arange(self.seconds.shape[2])
        return np.asarray(np.where(np.isfinite(self.seconds), n, 0).max(axis=2))


def stage_seconds(table: LatencyTable, on_gpu: Ints, batch: Floats, master: bool) -> Floats:
    """t(n) = G t_gpu(b) + C t_cpu(b) + head(b) for [operating point, n]; infinite where n does not fit."""
    n = np.arange(on_gpu.shape[1])[None, :]
    in_ram = n - on_gpu
    seconds = on_gpu * interpolate(table, table.gpu_block_seconds, batch)[:, None]
    if table.cpu_block_seconds is not None:
        seconds = seconds + in_ram * interpolate(table, table.cpu_block_seconds, batch)[:, None]
    else:
        seconds = np.where(in_ram > 0, np.inf, seconds)
    if master:
        seconds = seconds + interpolate(table, table.head_seconds, batch)[:, None]
    return np.where(on_gpu < 0, np.inf, seconds)


class Costs:
    """Stage tables of every device kind, computed once for each set of operating points."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.sums: BlockSums = block_sums(problem.model)
        self._kinds: dict[int, Device] = {}
        for kind, device in zip(problem.kind_of, problem.devices, strict=True):
            self._kinds.setdefault(kind, device)
        self._tables: dict[tuple[int, str, tuple[int, ...], tuple[float, ...]], StageTable] = {}

    @property
    def kinds(self) -> dict[int, Device]:
        """Kind number -> one device of that kind."""
        return self._kinds

    def table(self, kind: int, phase: str, slots: tuple[int, ...], batch: tuple[float, ...]) -> StageTable:
        """`phase` is "decode" (batch = sequences) or "prefill" (batch = tokens), one batch for each slot count."""
        key = (kind, phase, slots, batch)
        if key not in self._tables:
            device = self._kinds[kind]
            source = device.decode if phase == "decode" else device.prefill
            sides = (False, True) if device.can_be_master else (False,)
            split = [
                gpu_blocks(self.sums, self.problem.model, device, np.array(slots), side) for side in sides
            ]
            points = np.array(batch, dtype=np.float64)
            seconds = [stage_seconds(source, g, points, side) for g, side in zip(split, sides, strict=True)]
            if not device.can_be_master:
                split.append(np.full_like(split[0], -1))
                seconds.append(np.full_like(seconds[0], np.inf))
            self._tables[key] = StageTable(np.stack(seconds), np.stack(split))
        return self._tables[key]

    def activation_bytes(self, batch: Floats) -> Floats:
        return batch * self.problem.model.embedding_length * ACTIVATION_BYTES

    def hop_seconds(self, a: int, b: int, batch: Floats) -> Floats:
        """One hop between two kinds, for each batch."""
        link = self.problem.link(self._kinds[a].name, self._kinds[b].name)
        return link_seconds(self.activation_bytes(batch), link)

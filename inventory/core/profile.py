"""From timings of depth-reduced slices to latency tables: seconds per block and for the head.

For each batch size or prompt length the time of a slice of n blocks is a + b n; b is the block, a the head. Behind its
attention the last block of a prompt computes one token only: what it saves outweighs the head, so that a is negative.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from inventory.core.quantities import counted, seconds_text

DECODE, PREFILL, DEEP = "decode", "prefill", "deep_decode"
SAVES = "last_block_saves_seconds"
USUAL_SAVED_BLOCKS = 0.5  # of a dense block, by measurement; used where noise hides it
SMALLEST_SECONDS = 1e-7
NOISY_SPREAD = 1.5
POOL_WORDS = {"gpu": "main pool", "cpu": "second pool"}


class ProfileError(Exception):
    """The timings cannot be turned into tables; the text says which and why."""


@dataclass(frozen=True)
class Timing:
    """One measurement: `size` is the micro-batch of a decode step or the length of a prompt.

    `context_tokens` is what every sequence of a deep decode step already holds.
    """

    phase: str
    pool: str
    blocks: int
    size: int
    seconds: float
    round: int = 0
    context_tokens: int = 0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Fitted:
    """Tables as a device has them in a cluster file, and how well they fit what was measured."""

    tables: dict[str, Any]
    residual: float
    noisy: tuple[str, ...]


def fit(timings: Sequence[Timing], head_blocks: float) -> Fitted:
    """Latency tables from timings at two depths or more in every cell of the grid.

    `head_blocks` is the head's bytes over a block's: decode reads each once, so where noise hides the slope
    the time is shared in that proportion.
    """
    bad = [timing for timing in timings if not SMALLEST_SECONDS < timing.seconds < 1e5]
    if bad:
        raise ProfileError(
            f"a timing of {bad[0].seconds} s ({bad[0].phase}, size {bad[0].size}) cannot be true"
        )
    decode = _phase(timings, DECODE, head_blocks)
    prefill = _phase(timings, PREFILL, 0.0)
    tables = {
        DECODE: {"micro_batch": decode["sizes"], **decode["columns"]},
        PREFILL: {"tokens": prefill["sizes"], **prefill["columns"]},
    }
    residual = max(decode["residual"], prefill["residual"])
    contexts = {timing.context_tokens for timing in timings if timing.phase == DEEP}
    assert len(contexts) < 2, "a grid has one deep context"
    if contexts:
        deep = _phase(timings, DEEP, head_blocks)
        blocks = {name: seconds for name, seconds in deep["columns"].items() if name != "head_seconds"}
        tables[DEEP] = {"context_tokens": contexts.pop(), "micro_batch": deep["sizes"], **blocks}
        residual = max(residual, deep["residual"])
    return Fitted(tables, residual, tuple(_noisy(timings)))


def at_depth(tables: dict[str, Any], share: float, blocks: int) -> dict[str, Any]:
    """The tables of a cluster file when a token reads `share` of the cache that the deep timings read.

    What the last block of a prompt saves is shared out to all `blocks` of the model: every replica runs all of them.
    """
    plain = {DECODE: tables[DECODE], PREFILL: _shared_out(tables[PREFILL], blocks)}
    if DEEP not in tables:
        return plain
    decode, deep = tables[DECODE], tables[DEEP]
    columns = {
        name: _with_cache(decode["micro_batch"], decode[name], deep["micro_batch"], deep[name], share)
        for name in ("gpu_block_seconds", "cpu_block_seconds")
        if decode[name] is not None
    }
    return plain | {DECODE: {**decode, **columns}}


def _shared_out(prefill: dict[str, Any], blocks: int) -> dict[str, Any]:
    plain = {name: column for name, column in prefill.items() if name != SAVES}
    if SAVES not in prefill:  # a profile from before it was told apart
        return plain
    columns = {
        name: [
            float(f"{max(seconds - saved / blocks, SMALLEST_SECONDS):.6g}")
            for seconds, saved in zip(prefill[name], prefill[SAVES], strict=True)
        ]
        for name in ("gpu_block_seconds", "cpu_block_seconds")
        if prefill[name] is not None
    }
    return plain | columns


def scaled(tables: dict[str, Any], factors: Mapping[str, float]) -> dict[str, Any]:
    """The tables with all seconds of a phase multiplied; deep decode steps go with the others."""
    return {
        phase: {
            name: [float(f"{value * factors.get(phase.removeprefix('deep_'), 1.0):.6g}") for value in column]
            if column is not None and name.endswith("_seconds")
            else column
            for name, column in table.items()
        }
        for phase, table in tables.items()
    }


def _with_cache(
    sizes: Sequence[int],
    seconds: Sequence[float],
    deep_sizes: Sequence[int],
    deep_seconds: Sequence[float],
    share: float,
) -> list[float]:
    """Every sequence of a batch reads a cache of its own, so what a full cache adds grows with the batch."""
    extra = np.maximum(np.array(deep_seconds) - np.interp(deep_sizes, sizes, seconds), 0.0)
    added = np.interp(sizes, [0, *deep_sizes], [0.0, *extra])
    past = np.maximum(np.array(sizes) / deep_sizes[-1], 1.0)
    return [float(f"{value:.6g}") for value in np.array(seconds) + share * added * past]


def measured_text(seconds: float) -> str:
    """Seconds of a table as a person reads them; the smallest that a table holds was not measured."""
    return "too small to measure" if seconds <= SMALLEST_SECONDS else seconds_text(seconds)


def predict(table: dict[str, Any], index: int, blocks: int) -> float:
    """Seconds of a model of `blocks` blocks at one point of the table's grid, beside what was measured."""
    saved = table[SAVES][index] if SAVES in table else 0.0
    return float(table["head_seconds"][index] - saved + blocks * table["gpu_block_seconds"][index])


def off_by(tables: dict[str, Any], timings: Iterable[Timing]) -> float:
    """Largest relative distance of a prompt or step in the main pool from what the tables give for it."""
    grouped: dict[str, list[Timing]] = defaultdict(list)
    for timing in timings:
        if timing.pool == "gpu" and timing.phase != DEEP:
            grouped[timing.phase].append(timing)
    errors = [0.0]
    for phase, chosen in grouped.items():
        sizes = tables[phase]["tokens" if phase == PREFILL else "micro_batch"]
        for (size, depth), seconds in cell_seconds(chosen).items():
            errors.append(abs(predict(tables[phase], sizes.index(size), depth) - seconds) / seconds)
    return max(errors)


def _phase(timings: Sequence[Timing], phase: str, head_blocks: float) -> dict[str, Any]:
    chosen = [timing for timing in timings if timing.phase == phase]
    main = _fit_pool([timing for timing in chosen if timing.pool == "gpu"], phase, head_blocks)
    second = [timing for timing in chosen if timing.pool == "cpu"]
    columns: dict[str, list[float] | None] = {
        "gpu_block_seconds": _rising(main["block"]),
        "cpu_block_seconds": None,
        "head_seconds": _rising([max(head, 0.0) for head in main["head"]]),
    }
    if phase == PREFILL:
        columns[SAVES] = _rising([max(-head, 0.0) for head in main["head"]])
    residual = main["residual"]
    if second:
        other = _fit_pool(second, phase, head_blocks)
        if other["sizes"] != main["sizes"]:
            raise ProfileError(f"{phase}: GPU and CPU blocks were timed at different sizes")
        columns["cpu_block_seconds"] = _rising(other["block"])
        residual = max(residual, other["residual"])
    return {"sizes": main["sizes"], "columns": columns, "residual": residual}


def _fit_pool(timings: Sequence[Timing], phase: str, head_blocks: float) -> dict[str, Any]:
    cells = cell_seconds(timings)
    if not cells:
        raise ProfileError(f"no timing of {phase} was taken")
    sizes = sorted({size for size, _ in cells})
    lines = [_line(cells, size, phase, head_blocks) for size in sizes]
    residuals = [line[2] for line in lines]
    return {
        "sizes": sizes,
        "block": [line[1] for line in lines],
        "head": [line[0] for line in lines],
        "residual": max(residuals),
    }


def cell_seconds(timings: Iterable[Timing]) -> dict[tuple[int, int], float]:
    """Lower quartile of the rounds by (size, blocks): other programs on a host only ever add time."""
    grouped: dict[tuple[int, int], list[float]] = defaultdict(list)
    for timing in timings:
        grouped[timing.size, timing.blocks].append(timing.seconds)
    return {cell: float(np.quantile(values, 0.25)) for cell, values in grouped.items()}


def _line(
    cells: dict[tuple[int, int], float], size: int, phase: str, head_blocks: float
) -> tuple[float, float, float]:
    """Head seconds, block seconds and the largest relative residual."""
    points = sorted((blocks, seconds) for (cell_size, blocks), seconds in cells.items() if cell_size == size)
    if len(points) < 2:
        raise ProfileError(
            f"{phase} of size {size} was timed at one depth only: block and head cannot be told apart"
        )
    depths = np.array([point[0] for point in points], dtype=float)
    seconds = np.array([point[1] for point in points], dtype=float)
    block, head = np.polyfit(depths, seconds, 1)
    saved_blocks = 1.0 if phase == PREFILL else 0.0
    if block <= 0 or head <= -saved_blocks * block:
        around = -USUAL_SAVED_BLOCKS if phase == PREFILL else head_blocks if block <= 0 else 0.0
        weight = depths + around
        block = float(np.sum(weight * seconds) / np.sum(weight * weight))
        head = around * block
    fitted = head + block * depths
    residual = float(np.max(np.abs(fitted - seconds) / seconds))
    return float(head), float(block), residual


def _rising(values: Sequence[float]) -> list[float]:
    """More work never takes less time: noise between neighbours is levelled at its mean (pool adjacent violators)."""
    groups: list[tuple[float, int]] = []
    for value in values:
        groups.append((max(value, SMALLEST_SECONDS), 1))
        while len(groups) > 1 and groups[-2][0] > groups[-1][0]:
            (left, left_count), (right, right_count) = groups[-2], groups[-1]
            count = left_count + right_count
            groups[-2:] = [((left * left_count + right * right_count) / count, count)]
    return [float(f"{value:.6g}") for value, count in groups for _ in range(count)]


def spread(timings: Iterable[Timing]) -> float:
    """How far rounds of one cell lie apart at most, relative to the fastest of them."""
    return max((max(values) / min(values) - 1 for values in _rounds(timings).values()), default=0.0)


def tells_error(timings: Iterable[Timing]) -> bool:
    """Whether the fit has an error at all: a line through two depths meets both."""
    depths: dict[tuple[str, str, int], set[int]] = defaultdict(set)
    for timing in timings:
        depths[timing.phase, timing.pool, timing.size].add(timing.blocks)
    return any(len(found) > 2 for found in depths.values())


def _noisy(timings: Iterable[Timing]) -> list[str]:
    return [
        f"{phase.replace('_', ' ')} of {size} with {counted(blocks, 'block')} ({POOL_WORDS[pool]}): "
        f"{max(values) / min(values):.1f} times apart"
        for (phase, pool, size, blocks), values in sorted(_rounds(timings).items())
        if len(values) > 1 and max(values) / min(values) > NOISY_SPREAD
    ]


def _rounds(timings: Iterable[Timing]) -> dict[tuple[str, str, int, int], list[float]]:
    grouped: dict[tuple[str, str, int, int], list[float]] = defaultdict(list)
    for timing in timings:
        grouped[timing.phase, timing.pool, timing.size, timing.blocks].append(timing.seconds)
    return grouped

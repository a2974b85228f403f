"""How much memory a model lacks on a fleet that cannot hold it, and what would make room."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import ceil, floor, log10

import numpy as np

from inventory.core.quantities import bytes_text, counted
from planner.core.latency import Costs
from planner.core.memory import Ints, block_sums, gpu_blocks
from planner.core.problem import BlockKind, ModelShape, Problem
from planner.core.slots import DECODE

DIGITS = 3
HALVINGS = 26  # of a range in which a border is looked for
SMALLEST_SHARE = 0.16  # from 16 to 2.6 bits for each weight: no quantisation makes a model smaller
EASILY_FREED_SHARE = 0.25  # of what a device has usable


def held_blocks(costs: Costs) -> int:
    """Blocks that all devices hold as one replica with one slot."""
    return _together(_most_blocks(costs))


def _together(most: Ints) -> int:
    """Blocks of one replica, from those that each device holds as worker and as master: [device, side]."""
    workers, masters = most[:, 0], most[:, 1]
    as_master = masters + workers.sum() - workers
    return int(as_master.max(where=masters > 0, initial=0))


def _most_blocks(costs: Costs) -> Ints:
    tables = [costs.table(kind, DECODE, (1,), (1.0,)) for kind in costs.problem.kind_of]
    return np.array([table.most_blocks[:, 0] for table in tables])


def missing_bytes(costs: Costs) -> float:
    """The smallest memory of one more device, without a second pool, with which all blocks fit."""
    return _smallest_device(costs.problem, _most_blocks(costs))


def _smallest_device(problem: Problem, most: Ints) -> float:
    model, sums = problem.model, block_sums(problem.model)
    usual = replace(problem.devices[0], ram_usable_bytes=0.0, max_blocks=None)

    def fits(size: float) -> bool:
        new = replace(usual, gpu_usable_bytes=size)
        sides = [gpu_blocks(sums, model, new, np.array([1]), side)[0] for side in (False, True)]
        own = [int(np.flatnonzero(on_gpu >= 0).max(initial=0)) for on_gpu in sides]
        return _together(np.concatenate([most, [own]])) >= model.blocks

    low, high = 0.0, 1.0
    while not fits(high):
        low, high = high, 2 * high
    return _border(low, high, lambda size: not fits(size))[1]


def _border(low: float, high: float, holds: Callable[[float], bool]) -> tuple[float, float]:
    """Two close numbers, of which the claim holds for the lower one and no more for the other."""
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, high


def cause(problem: Problem) -> str:
    """A sentence on the KV cache where it is most of what the whole model needs."""
    nobody = np.zeros((0, 2), dtype=np.int64)
    whole = _smallest_device(problem, nobody)
    kv = whole - _smallest_device(replace(problem, model=with_kv_share(problem.model, 0.0)), nobody)
    if kv <= whole / 2:
        return ""
    return f" The KV cache of that one slot is most of it: {bytes_text(kv)} of {bytes_text(whole)}."


def remedy(problem: Problem, missing: float) -> str:
    """The changes that make all blocks fit, each tried out on the fleet; the smallest first."""
    size = bytes_text(rounded(missing, ceil))
    ways = [*_shorter_context(problem), f"add a device with {size} usable"]
    ways += _freed(problem, missing, size) + _smaller_blocks(problem) + ["take a smaller model"]
    text = f"{', '.join(ways[:-1])} or {ways[-1]}."
    return text[0].upper() + text[1:]


def _shorter_context(problem: Problem) -> list[str]:
    workload = problem.workload
    share = _largest_share(problem, with_kv_share)
    tokens = int(rounded(share * workload.context_tokens, floor))
    if tokens < workload.input_tokens + workload.output_tokens:
        return []
    return [f"take a slot context of at most {counted(tokens, 'token')}"]


def _freed(problem: Problem, missing: float, size: str) -> list[str]:
    """On the device with the most memory, where that is a small part of it."""
    sizes = [device.gpu_usable_bytes for device in problem.devices]
    k = int(np.argmax(sizes))
    more = replace(problem.devices[k], gpu_usable_bytes=sizes[k] + rounded(missing, ceil))
    devices = (*problem.devices[:k], more, *problem.devices[k + 1 :])
    if missing <= EASILY_FREED_SHARE * sizes[k] and _fits(replace(problem, devices=devices)):
        return [f"free {size} on {more.name}"]
    return []


def _smaller_blocks(problem: Problem) -> list[str]:
    share = _largest_share(problem, with_weight_share)
    largest = max(block.block_bytes for block in problem.model.blocks_in_order())
    if share < SMALLEST_SHARE:
        return []
    most = bytes_text(rounded(share * largest, floor))
    return [f"take a quantisation with blocks of at most {most} (now {bytes_text(largest)})"]


def _largest_share(problem: Problem, shrunk: Callable[[ModelShape, float], ModelShape]) -> float:
    """The largest share of the model's size by which it fits, or 0 where nothing of it would."""
    return _border(0.0, 1.0, lambda share: _fits(replace(problem, model=shrunk(problem.model, share))))[0]


def _fits(problem: Problem) -> bool:
    return held_blocks(Costs(problem)) >= problem.model.blocks


def with_kv_share(model: ModelShape, share: float) -> ModelShape:
    """The model with a shorter context; blocks with less than the largest KV cache keep theirs, as windows do."""
    largest = max(block.kv_slot_block_bytes for block in model.blocks_in_order())

    def shrunk(kv: float) -> float:
        return kv * share if kv == largest else kv

    kinds = tuple(
        (name, replace(kind, kv_slot_block_bytes=shrunk(kind.kv_slot_block_bytes)))
        for name, kind in model.kinds
    )
    return replace(model, kv_slot_block_bytes=shrunk(model.kv_slot_block_bytes), kinds=kinds)


def with_weight_share(model: ModelShape, share: float) -> ModelShape:
    """The model with smaller blocks; its head stays as it is."""

    def shrunk(kind: BlockKind) -> BlockKind:
        resident = kind.block_resident_bytes * share
        return replace(kind, block_bytes=kind.block_bytes * share, block_resident_bytes=resident)

    return replace(
        model,
        block_bytes=model.block_bytes * share,
        block_resident_bytes=model.block_resident_bytes * share,
        kinds=tuple((name, shrunk(kind)) for name, kind in model.kinds),
    )


def rounded(value: float, direction: Callable[[float], int]) -> float:
    """Three digits, rounded the way that keeps a promise."""
    if value <= 0:
        return 0.0
    power = floor(log10(value)) - DIGITS + 1
    scaled = value / 10**power if power > 0 else value * 10**-power
    step = direction(float(f"{scaled:.11f}"))
    return float(step * 10**power if power > 0 else step / 10**-power)

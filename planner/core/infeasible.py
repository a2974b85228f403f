"""Why there is no plan: the limit that binds, by how much, and the smallest change that would help."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

import numpy as np

from inventory.core.quantities import counted
from planner.core.catalogue import Catalogue
from planner.core.errors import NoFeasiblePlan
from planner.core.explain import bytes_text
from planner.core.latency import Costs
from planner.core.problem import Problem
from planner.core.slots import DECODE, Group

GROUPS_LOOKED_AT = 400
NAMED_DEVICES = 6


def reason(catalogue: Catalogue) -> NoFeasiblePlan:
    """The error to raise once no method has found a plan."""
    return _memory(catalogue) or _floor(catalogue) or _roles(catalogue)


def _memory(catalogue: Catalogue) -> NoFeasiblePlan | None:
    problem, model = catalogue.problem, catalogue.problem.model
    if not any(device.can_be_master for device in problem.devices):
        text = "None of the devices may be the master of a replica."
        return NoFeasiblePlan("master", text, 1, "devices", "Let at least one device be a master.")
    held = _held_blocks(catalogue.costs)
    if held >= model.blocks:
        return None
    devices = tuple(replace(device, max_blocks=None) for device in problem.devices)
    if _held_blocks(Costs(replace(problem, devices=devices))) >= model.blocks:
        return _max_blocks(problem, held)
    block = model.block_bytes + model.kv_slot_block_bytes
    if held == 0:
        needed = model.output_bytes + model.logits_buffer_bytes + model.embedding_bytes + block
        text = f"No device has room for the output layer, the embedding and one block ({bytes_text(needed)})."
        most = max(device.gpu_usable_bytes for device in problem.devices)
        short = max(0.0, needed - most)
        remedy = f"Add a device with {bytes_text(needed)} usable, or take a smaller model or quantisation."
        return NoFeasiblePlan("memory", text, short, "bytes", remedy)
    missing = model.blocks - held
    text = (
        f"{_devices_hold(problem)} {held} of the {counted(model.blocks, 'block')} of "
        f"{model.name} with one slot of {counted(problem.workload.context_tokens, 'token')}; "
        f"{counted(missing, 'block')} ({bytes_text(missing * block)}) short."
    )
    smaller = held / model.blocks * model.block_bytes
    remedy = (
        f"Free or add {bytes_text(missing * block)}, or take a quantisation with blocks of at most "
        f"{bytes_text(smaller)} (now {bytes_text(model.block_bytes)})."
    )
    return NoFeasiblePlan("memory", text, missing * block, "bytes", remedy)


def _held_blocks(costs: Costs) -> int:
    """Blocks that all devices hold as one replica with one slot."""
    tables = [costs.table(kind, DECODE, (1,), (1.0,)) for kind in costs.problem.kind_of]
    workers = np.array([int(table.most_blocks[0, 0]) for table in tables])
    masters = np.array([int(table.most_blocks[1, 0]) for table in tables])
    return max(
        (int(masters[k] + workers.sum() - workers[k]) for k in range(len(tables)) if masters[k] > 0),
        default=0,
    )


def _devices_hold(problem: Problem) -> str:
    n = len(problem.devices)
    return "1 device holds" if n == 1 else f"{n:,} devices together hold"


def _max_blocks(problem: Problem, held: int) -> NoFeasiblePlan:
    """The memory would do, but for what the cluster file lets a device hold."""
    capped = [device for device in problem.devices if device.max_blocks is not None]
    names = ", ".join(f"{device.name} {device.max_blocks}" for device in capped[:NAMED_DEVICES])
    more = f" and {counted(len(capped) - NAMED_DEVICES, 'other')}" if len(capped) > NAMED_DEVICES else ""
    missing = problem.model.blocks - held
    text = (
        f"{_devices_hold(problem)} {held} of the {counted(problem.model.blocks, 'block')} of "
        f"{problem.model.name}: their memory has room for all, but max_blocks allows no more ({names}{more})."
    )
    remedy = f"Raise max_blocks, by {counted(missing, 'block')} in all, or add a device."
    return NoFeasiblePlan("max_blocks", text, missing, "blocks", remedy)


def _some_groups(catalogue: Catalogue) -> Iterator[Group]:
    """The whole cluster and the small groups first: a replica of few devices is the fastest one."""
    kinds = catalogue.problem.kind_of
    seen: set[Group] = set()
    for size in range(1, len(kinds) + 1):
        for group in combinations(sorted(kinds), size):
            if group not in seen:
                seen.add(group)
                yield group
            if len(seen) >= GROUPS_LOOKED_AT:
                yield tuple(sorted(kinds))
                return


def _floor(catalogue: Catalogue) -> NoFeasiblePlan | None:
    fastest = 0.0
    for group in _some_groups(catalogue):
        fastest = max(fastest, 1.0 / float(catalogue.step_seconds(group).min(initial=np.inf)))
    floor = catalogue.problem.policy.min_tokens_per_second
    if fastest >= floor:
        return None
    text = (
        f"The fastest possible replica gives {fastest:.3g} tokens/s with one request; the floor is {floor:g}."
    )
    remedy = (
        f"Lower the floor to {_rounded_down(fastest):g} tokens/s, or take faster devices or a smaller model."
    )
    return NoFeasiblePlan("floor", text, floor - fastest, "tokens per second", remedy)


def _rounded_down(value: float) -> float:
    step = 10.0 ** (np.floor(np.log10(value)) - 1) if value > 0 else 1.0
    return float(np.floor(value / step) * step)


def _roles(catalogue: Catalogue) -> NoFeasiblePlan:
    policy = catalogue.problem.policy
    if not policy.allow_mixed:
        text = "The devices make one replica that holds the floor, but prefill and decode need one each."
        remedy = "Allow mixed replicas, or add a device."
        return NoFeasiblePlan("replicas", text, 1, "replicas", remedy)
    text = "Not every device can take part in a replica that holds the memory and speed limits."
    return NoFeasiblePlan("idle", text, 1, "devices", "Allow idle devices.")

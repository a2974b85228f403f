"""Why there is no plan: the limit that binds, by how much, and the smallest change that would help."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from math import floor

import numpy as np

from inventory.core.quantities import bytes_text, counted, significant
from planner.core.catalogue import Catalogue
from planner.core.errors import NoFeasiblePlan
from planner.core.latency import Costs
from planner.core.problem import Problem
from planner.core.room import DIGITS, cause, held_blocks, missing_bytes, remedy, rounded
from planner.core.slots import Group

GROUPS_LOOKED_AT = 400
NAMED_DEVICES = 6
MOST_DIGITS = 17  # of a float


def reason(catalogue: Catalogue) -> NoFeasiblePlan:
    """The error to raise once no method has found a plan."""
    return _memory(catalogue) or _floor(catalogue) or _roles(catalogue)


def _memory(catalogue: Catalogue) -> NoFeasiblePlan | None:
    problem, model = catalogue.problem, catalogue.problem.model
    if not any(device.can_be_master for device in problem.devices):
        text = "None of the devices may be the master of a replica."
        return NoFeasiblePlan("master", text, 1, "devices", "Let at least one device be a master.")
    held = held_blocks(catalogue.costs)
    if held >= model.blocks:
        return None
    devices = tuple(replace(device, max_blocks=None) for device in problem.devices)
    if held_blocks(Costs(replace(problem, devices=devices))) >= model.blocks:
        return _max_blocks(problem, held)
    missing = missing_bytes(catalogue.costs)
    slot = f"one slot of {counted(problem.workload.context_tokens, 'token')}"
    text = (
        f"{_devices_hold(problem)} {held} of the {counted(model.blocks, 'block')} of {model.name} with {slot}; "
        f"{bytes_text(missing)} are missing for the rest."
        if held
        else f"No device has room for the output layer, the embedding and one block of {model.name} with {slot}; "
        f"{bytes_text(missing)} are missing for all {counted(model.blocks, 'block')}."
    )
    return NoFeasiblePlan("memory", text + cause(problem), missing, "bytes", remedy(problem, missing))


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
    wanted = catalogue.problem.policy.min_tokens_per_second
    if fastest >= wanted:
        return None
    if fastest == 0:
        return _too_few_slots()
    reached, asked = told_apart(fastest, wanted)
    lower = significant(rounded(fastest, floor))
    text = f"The fastest possible replica gives {reached} tokens/s with one request; the floor is {asked}."
    remedy = f"Lower the floor to {lower} tokens/s, or take faster devices or a smaller model."
    return NoFeasiblePlan("floor", text, wanted - fastest, "tokens per second", remedy)


def told_apart(a: float, b: float) -> tuple[str, str]:
    """Two different numbers in as few digits as show that they differ."""
    assert a != b, "nothing tells equal numbers apart"
    for digits in range(DIGITS, MOST_DIGITS):
        if significant(a, digits) != significant(b, digits):
            return significant(a, digits), significant(b, digits)
    return str(a), str(b)


def _too_few_slots() -> NoFeasiblePlan:
    """Overlapped stages alone ask for more slots than the one that fits."""
    text = "The devices hold the model with one slot, but overlapped stages need one for each device of a replica."
    remedy = "Take the serial runtime, allow more slots, take a shorter slot context or add memory."
    return NoFeasiblePlan("memory", text, 1, "slots", remedy)


def _roles(catalogue: Catalogue) -> NoFeasiblePlan:
    policy = catalogue.problem.policy
    if not policy.allow_mixed:
        text = "The devices make one replica that holds the floor, but prefill and decode need one each."
        remedy = "Allow mixed replicas, or add a device."
        return NoFeasiblePlan("replicas", text, 1, "replicas", remedy)
    text = "Not every device can take part in a replica that holds the memory and speed limits."
    return NoFeasiblePlan("idle", text, 1, "devices", "Allow idle devices.")

"""Can a plan be one for this problem: every reason against it, with its path in the plan file."""

from __future__ import annotations

from collections.abc import Iterator

from inventory.core.quantities import counted
from planner.core.memory import ROUNDING, BlockSums, block_sums, stage_bytes
from planner.core.plan import Plan, Replica, Stage
from planner.core.problem import Device, ModelShape, Problem


def faults(problem: Problem, plan: Plan) -> list[str]:
    devices = {device.name: device for device in problem.devices}
    sums = block_sums(problem.model)
    found = [
        f"idle[{number}]: {name!r} is not a device of the cluster file"
        for number, name in enumerate(plan.idle)
        if name not in devices
    ]
    for number, replica in enumerate(plan.replicas):
        path = f"replicas[{number}]"
        found += _of_the_whole(problem, replica, path)
        for position, stage in enumerate(replica.stages):
            device = devices.get(stage.device)
            place = f"{path}.stages[{position}]"
            if device is None:
                found.append(f"{place}.device: {stage.device!r} is not a device of the cluster file")
                continue
            found += _of_the_device(stage, device, place)
            if stage.blocks <= problem.model.blocks and replica.slots <= problem.policy.max_slots:
                found += _of_memory(sums, problem.model, device, replica, stage, place)
    return found


def _of_the_whole(problem: Problem, replica: Replica, path: str) -> Iterator[str]:
    blocks, needed, most = (
        sum(stage.blocks for stage in replica.stages),
        problem.model.blocks,
        problem.policy.max_slots,
    )
    if blocks != needed:
        yield f"{path}: holds {counted(blocks, 'block')}, the model has {needed}"
    if replica.slots > most:
        yield f"{path}.slots: {replica.slots} is more than the policy's max_slots, {most}"


def _of_the_device(stage: Stage, device: Device, path: str) -> Iterator[str]:
    if stage.cpu_blocks and device.decode.cpu_block_seconds is None:
        yield f"{path}.cpu_blocks: {stage.device} has no CPU latencies in the cluster file"
    elif stage.cpu_blocks and device.ram_usable_bytes <= 0:
        yield f"{path}.cpu_blocks: {stage.device} has no memory beside its main one in the cluster file"
    if device.max_blocks is not None and stage.blocks > device.max_blocks:
        yield f"{path}: holds {counted(stage.blocks, 'block')}, {stage.device} takes at most {device.max_blocks}"
    if stage.master and not device.can_be_master:
        yield f"{path}.master: {stage.device} cannot be a master by the cluster file"


def _of_memory(
    sums: BlockSums, model: ModelShape, device: Device, replica: Replica, stage: Stage, path: str
) -> Iterator[str]:
    split = (stage.gpu_blocks, stage.cpu_blocks)
    needed = stage_bytes(sums, model, device, replica.slots, split, stage.master)
    pools = (
        ("gpu_blocks", needed.gpu_bytes, device.gpu_usable_bytes),
        ("cpu_blocks", needed.ram_bytes, device.ram_usable_bytes),
    )
    for key, used, limit in pools:
        if used > limit + ROUNDING * max(used, 1e9):
            yield f"{path}.{key}: needs {used:,.0f} bytes on {stage.device}, which has {limit:,.0f} usable"

"""Does a stage fit: how many of a device's blocks lie on the GPU and how many keep their experts in RAM."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.core.problem import Device, ModelShape

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
ROUNDING = 1e-9  # a block that fits exactly must not be lost to a float's last digit


@dataclass(frozen=True)
class BlockSums:
    """Bytes of n consecutive blocks, for the n of them that need most: [n] -> bytes."""

    resident_bytes: Floats
    kv_slot_bytes: Floats
    movable_bytes: float
    kv_follows_block: bool

    @property
    def blocks(self) -> int:
        return len(self.resident_bytes) - 1


def block_sums(model: ModelShape) -> BlockSums:
    """When blocks differ, the worst window of n counts, so a stage fits wherever it lies in the model."""
    blocks = model.blocks_in_order()
    resident = np.array([block.block_resident_bytes for block in blocks])
    kv = np.array([block.kv_slot_block_bytes for block in blocks])
    movable = max(block.block_bytes - block.block_resident_bytes for block in blocks)
    # A dense model has no experts to leave behind: the whole block moves and takes its KV cache along.
    return BlockSums(_worst_windows(resident), _worst_windows(kv), movable, bool(resident.max() == 0))


def _worst_windows(values: Floats) -> Floats:
    total = np.concatenate([[0.0], np.cumsum(values)])
    n = len(values)
    return np.array([(total[size:] - total[: n + 1 - size]).max() for size in range(n + 1)])


def master_bytes(model: ModelShape) -> float:
    """What a master has beside its blocks and the embedding, whatever its slots."""
    return model.output_bytes + model.logits_buffer_bytes + model.master_compute_bytes


def gpu_blocks(sums: BlockSums, model: ModelShape, device: Device, slots: Ints, master: bool) -> Ints:
    """Blocks wholly on the GPU when the device holds n of them: [slots, n] -> G, or -1 where n does not fit."""
    n = np.arange(sums.blocks + 1)[None, :]
    s = slots[:, None]
    kv = s * sums.kv_slot_bytes[None, :]
    per_block = np.broadcast_to(np.float64(sums.movable_bytes), kv.shape)
    fixed = sums.resident_bytes[None, :] + s * model.slot_overhead_bytes
    if sums.kv_follows_block:
        per_block = per_block + s * sums.kv_slot_bytes[1]
    else:
        fixed = fixed + kv
    fixed = fixed + (
        master_bytes(model) + s * model.logits_slot_bytes if master else model.worker_compute_bytes
    )
    has_ram = device.ram_usable_bytes > 0
    # One pool (unified memory, or a host without a GPU) holds the token embedding as well.
    fixed = fixed + (0 if has_ram else master * model.embedding_bytes)
    room = device.gpu_usable_bytes - fixed
    on_gpu = np.minimum(np.floor(room / per_block + ROUNDING), n).astype(np.int64)
    in_ram = (n - on_gpu) * per_block + master * model.embedding_bytes
    fits = (room >= -ROUNDING) & (on_gpu >= 0)
    fits &= (in_ram <= device.ram_usable_bytes) if has_ram else (on_gpu == n)
    if device.max_blocks is not None:
        fits &= n <= device.max_blocks
    return np.where(fits, on_gpu, -1)


@dataclass(frozen=True)
class StageBytes:
    gpu_bytes: float
    gpu_limit_bytes: float
    ram_bytes: float


def stage_bytes(
    sums: BlockSums, model: ModelShape, device: Device, slots: int, split: tuple[int, int], master: bool
) -> StageBytes:
    """What a stage of `split` = (GPU blocks, CPU blocks) takes from its device."""
    on_gpu, in_ram = split
    n = on_gpu + in_ram
    per_block = sums.movable_bytes + (slots * sums.kv_slot_bytes[1] if sums.kv_follows_block else 0.0)
    kv = 0.0 if sums.kv_follows_block else slots * float(sums.kv_slot_bytes[n])
    gpu = on_gpu * per_block + float(sums.resident_bytes[n]) + kv + slots * model.slot_overhead_bytes
    gpu += master_bytes(model) + slots * model.logits_slot_bytes if master else model.worker_compute_bytes
    ram = in_ram * per_block
    embedding = master * model.embedding_bytes
    if device.ram_usable_bytes > 0:
        return StageBytes(gpu, device.gpu_usable_bytes, ram + embedding)
    return StageBytes(gpu + embedding, device.gpu_usable_bytes, 0.0)

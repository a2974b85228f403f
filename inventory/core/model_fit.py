"""How many blocks of a model a device can hold: the sums behind the fit table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from inventory.core.model_shape import F16_BYTES, KV_TYPE_BYTES, BlockShape, ModelShape, in_groups


@dataclass(frozen=True)
class Memory:
    """What llama-server takes to run a model alone on one device, as its load log lists it."""

    weight_bytes: int
    kv_bytes: int
    compute_bytes: int
    output_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.weight_bytes + self.kv_bytes + self.compute_bytes + self.output_bytes


@dataclass(frozen=True)
class Setting:
    """How a server is started: context of one slot, slots, cache type, whether windows keep everything."""

    context_tokens: int
    slots: int = 1
    kv_type: str = "f16"
    full_cache: bool = False
    micro_batch_tokens: int = 512

    @property
    def cache_tokens(self) -> int:
        return self.context_tokens * self.slots

    def rows(self, window: int | None) -> int:
        """Rows of a block's cache: one pool for all slots, in which a window is kept for each of them."""
        if window is None or self.full_cache:
            return in_groups(self.cache_tokens)
        return in_groups(min(self.cache_tokens, window * self.slots + self.micro_batch_tokens))

    def cache_bytes(self, block: BlockShape) -> int:
        """One block's cache and recurrent state for all slots."""
        scale = KV_TYPE_BYTES[self.kv_type] / KV_TYPE_BYTES["f16"]
        cache = self.rows(block.window_tokens) * block.kv_bytes_per_token * scale
        return round(cache) + self.slots * block.state_bytes


def memory_of(shape: ModelShape, setting: Setting) -> Memory:
    """The four buffers of a server that runs the whole model with a unified cache and flash attention."""
    return stage_memory_of(shape, setting, shape.blocks, master=True)


def stage_memory_of(
    shape: ModelShape, setting: Setting, blocks: Sequence[BlockShape], *, master: bool
) -> Memory:
    """The buffers of one device that runs these blocks; the master holds what is not in a block as well."""
    # The masks are inputs of the whole graph, and those are the master's.
    masked = shape.blocks if master else blocks
    windows = {block.window_tokens for block in masked if block.kv_bytes_per_token}
    cells = sum(map(setting.rows, windows))
    ends = shape.weight_bytes - sum(block.size_bytes for block in shape.blocks)
    return Memory(
        weight_bytes=sum(block.size_bytes for block in blocks) + master * ends,
        kv_bytes=sum(map(setting.cache_bytes, blocks)),
        compute_bytes=shape.compute_bytes(setting.micro_batch_tokens, cells, master=master),
        output_bytes=master * shape.logits_bytes(setting.slots),
    )


def slot_overhead_bytes(shape: ModelShape, context_tokens: int, *, full_cache: bool) -> int:
    """What one more slot adds to a device's compute buffer: its part of the masks, one for each length of window."""
    setting = Setting(context_tokens, full_cache=full_cache)
    windows = {block.window_tokens for block in shape.blocks if block.kv_bytes_per_token}
    return setting.micro_batch_tokens * F16_BYTES * sum(map(setting.rows, windows))


@dataclass(frozen=True)
class Fit:
    """Blocks wholly in the main pool, blocks that use the second one, and whether that is the whole model."""

    main_blocks: int
    second_blocks: int
    total_blocks: int

    @property
    def is_whole(self) -> bool:
        return self.main_blocks + self.second_blocks >= self.total_blocks


def fit_of(shape: ModelShape, gpu_bytes: int, ram_bytes: int, context_tokens: int, slots: int = 1) -> Fit:
    """Blocks that a device holds alone as the master, with the head, for `slots` requests of this context.

    A block with experts keeps its small part and its cache in the main pool; a dense block moves whole.
    """
    total = len(shape.blocks)
    weight = mean(block.size_bytes for block in shape.blocks)
    resident = mean(block.resident_bytes for block in shape.blocks)
    cache = slots * mean(block.kv_bytes(context_tokens, full_cache=True) for block in shape.blocks)
    mask = slots * slot_overhead_bytes(shape, context_tokens, full_cache=True)
    fixed = shape.output_bytes + shape.logits_bytes(slots) + shape.compute_bytes() + mask
    free = gpu_bytes - fixed - (0 if ram_bytes else shape.untied_embedding_bytes)
    second_free = ram_bytes - (shape.embedding_bytes if ram_bytes else 0)
    if not resident:
        main = _whole(free, weight + cache, total)
        return Fit(main, min(_whole(second_free, weight + cache, total), total - main), total)
    for main in range(total, -1, -1):
        second = total - main
        needed = main * weight + second * resident + total * cache
        if needed <= free and second * (weight - resident) <= max(second_free, 0):
            return Fit(main, second, total)
    return Fit(_whole(free, weight + cache, total), 0, total)


def _whole(free_bytes: float, each_bytes: float, most: int) -> int:
    if not each_bytes:
        return most if free_bytes >= 0 else 0
    return max(0, min(int(free_bytes // each_bytes), most))

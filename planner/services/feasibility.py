"""What a fleet could hold, by memory alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inventory.core.model_shape import ModelShape
from inventory.core.quantities import bytes_text
from inventory.models import Device, LanguageModel
from planner import from_inventory


@dataclass(frozen=True)
class Term:
    """One line of the memory sum."""

    label: str
    how: str
    bytes: int


@dataclass(frozen=True)
class DeviceFit:
    name: str
    gpu_bytes: int | None
    ram_bytes: int
    blocks: int
    gap: from_inventory.Missing | None


@dataclass(frozen=True)
class Feasibility:
    """Does one copy of the model with one slot fit the chosen devices together, by memory alone."""

    terms: list[Term]
    need_bytes: int
    have_bytes: int
    devices: list[DeviceFit]
    blocks: int
    context_limit: int

    @property
    def fits(self) -> bool:
        return self.have_bytes >= self.need_bytes

    @property
    def copies(self) -> int:
        return self.have_bytes // self.need_bytes

    @property
    def short_bytes(self) -> int:
        return max(self.need_bytes - self.have_bytes, 0)

    @property
    def gaps(self) -> list[from_inventory.Missing]:
        return [fit.gap for fit in self.devices if fit.gap]


def feasibility(model: LanguageModel, devices: Sequence[Device], context_tokens: int) -> Feasibility:
    """The memory sum behind the hint of the form; it needs no profile."""
    shape = ModelShape.from_dict(model.shape)
    terms = memory_terms(shape, context_tokens)
    profiles = from_inventory.current_profiles(model, devices)
    per_block = (terms[0].bytes + terms[1].bytes) / len(shape.blocks)
    memory = from_inventory.counted_memory(devices)
    gaps = [from_inventory.device_gap(device, model, device.pk in profiles) for device in devices]
    fits = [
        device_fit(device, memory[device.pk], gap, per_block, len(shape.blocks))
        for device, gap in zip(devices, gaps, strict=True)
    ]
    return Feasibility(
        terms=terms,
        need_bytes=sum(term.bytes for term in terms),
        have_bytes=sum((fit.gpu_bytes or 0) + fit.ram_bytes for fit in fits),
        devices=fits,
        blocks=len(shape.blocks),
        context_limit=shape.context_train,
    )


def memory_terms(shape: ModelShape, context_tokens: int) -> list[Term]:
    blocks = len(shape.blocks)
    weights = sum(block.size_bytes for block in shape.blocks)
    cache = sum(block.kv_bytes(context_tokens, full_cache=shape.can_hand_over) for block in shape.blocks)
    ends = shape.output_bytes + shape.embedding_bytes
    return [
        Term("Blocks", f"{blocks} × {bytes_text(weights / blocks)}", weights),
        Term(
            "KV cache of one slot", f"{context_tokens:,} tokens × {bytes_text(cache / context_tokens)}", cache
        ),
        Term("Embedding and head", "on the master", ends),
        Term("Buffers", "logits and compute", shape.logits_bytes(1) + shape.compute_bytes()),
    ]


def device_fit(
    device: Device,
    memory: tuple[int, int],
    gap: from_inventory.Missing | None,
    per_block_bytes: float,
    most_blocks: int,
) -> DeviceFit:
    blocks = min(int(sum(memory) / per_block_bytes), most_blocks)
    gpu_bytes = None if device.gpu_usable_bytes is None else memory[0]
    return DeviceFit(device.name, gpu_bytes, memory[1], blocks, gap)

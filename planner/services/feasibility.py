"""What a fleet could hold, by memory alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from inventory.core.model_fit import Setting, memory_of
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
    reserve: str = ""  # why it is less than what the device has


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
    terms = memory_terms(shape, context_tokens, from_inventory.embedding_bytes(shape, devices))
    profiles = from_inventory.current_profiles(model, devices)
    per_block = (terms[0].bytes + terms[1].bytes) / len(shape.blocks)
    counted = from_inventory.counted_memory(devices)
    fits = []
    for device in devices:
        profile = profiles.get(device.pk)
        memory = from_inventory.less_overhead(counted[device.pk], profile) if profile else counted[device.pk]
        fits.append(
            DeviceFit(
                device.name,
                None if device.gpu_usable_bytes is None else memory[0],
                memory[1],
                min(int(sum(memory) / per_block), len(shape.blocks)),
                from_inventory.device_gap(device, model, profile is not None),
                " ".join([*share_notes(device, counted), *from_inventory.overhead_notes(profiles, [device])]),
            )
        )
    return Feasibility(
        terms=terms,
        need_bytes=sum(term.bytes for term in terms),
        have_bytes=sum((fit.gpu_bytes or 0) + fit.ram_bytes for fit in fits),
        devices=fits,
        blocks=len(shape.blocks),
        context_limit=shape.context_train,
    )


def memory_terms(shape: ModelShape, context_tokens: int, embedding_bytes: int) -> list[Term]:
    """What llama-server takes alone on one device; `embedding_bytes` stand beside the head."""
    blocks = len(shape.blocks)
    weights = sum(block.size_bytes for block in shape.blocks)
    memory = memory_of(shape, Setting(context_tokens, full_cache=shape.can_hand_over))
    copied = embedding_bytes - shape.untied_embedding_bytes
    cache = bytes_text(memory.kv_bytes / context_tokens)
    return [
        Term("Blocks", f"{blocks} × {bytes_text(weights / blocks)}", weights),
        Term("KV cache of one slot", f"{context_tokens:,} tokens × {cache}", memory.kv_bytes),
        Term("Embedding and head", "on the master", memory.weight_bytes - weights + copied),
        Term("Buffers", "logits and compute", memory.output_bytes + memory.compute_bytes),
    ]


def share_notes(device: Device, counted: Mapping[int, tuple[int, int]]) -> list[str]:
    """Why other chosen devices leave it less than it has."""
    has = device.gpu_usable_bytes or 0
    if counted[device.pk] == (has, device.ram_usable_bytes or 0):
        return []
    return [f"{bytes_text(has)} less the part of the other devices that are this machine."]

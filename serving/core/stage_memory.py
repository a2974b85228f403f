"""What one device of a replica holds: as model, split, context and slots give it, and as its load log says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inventory.core.model_fit import Setting, stage_memory_of
from inventory.core.model_shape import BlockShape, ModelShape

Json = Mapping[str, Any]


@dataclass(frozen=True)
class PlannedMemory:
    """What the devices of a deployment should hold: its model in that split, with those slots and that context."""

    shape: ModelShape
    plan: Json
    context_tokens: int
    with_gpu: frozenset[str]

    @classmethod
    def of(cls, shape: Json, plan: Json, cluster: Json, context_tokens: int) -> PlannedMemory:
        gpus = [one["name"] for one in cluster["devices"] if one.get("main_pool") in ("gpu", "unified")]
        return cls(ModelShape.from_dict(dict(shape)), plan, context_tokens, frozenset(gpus))

    def bytes_on(self, index: int, name: str) -> int:
        """All buffers of a device in the replica with that index; 0 where it has no part in it."""
        replica, shape = self.plan["replicas"][index], self.shape
        stage = stage_on(replica, name)
        if stage is None:
            return 0
        if shape.makes_embeddings:  # served whole, with micro-batches as long as its context
            return round(stage["gpu_bytes"] + stage["ram_bytes"])
        blocks = self.blocks_on(replica["stages"], name)
        memory = stage_memory_of(shape, self.setting(replica["slots"]), blocks, master=stage["master"])
        return memory.total_bytes + self.copied_bytes(stage)

    def setting(self, slots: int) -> Setting:
        hands_over = self.plan["mode"] == "disaggregated" and self.shape.can_hand_over
        return Setting(self.context_tokens, slots, full_cache=hands_over)

    def copied_bytes(self, stage: Json) -> int:
        """The copy that a master's GPU has of an embedding that is the head as well."""
        shared = self.shape.embedding_bytes - self.shape.untied_embedding_bytes
        return shared if stage["master"] and stage["device"] in self.with_gpu else 0

    def blocks_on(self, stages: Sequence[Json], name: str) -> list[BlockShape]:
        """The blocks of one device in llama.cpp's order: the master's CPU, the workers, the master's GPU."""
        master = next(stage for stage in stages if stage["master"])
        has_gpu = master["device"] in self.with_gpu
        behind = 0 if has_gpu and self.shape.is_moe else master["cpu_blocks"]
        first = behind if has_gpu else blocks_of(master)
        owners = [master["device"]] * first
        for stage in stages:
            owners += [] if stage["master"] else [stage["device"]] * blocks_of(stage)
        owners += [master["device"]] * (blocks_of(master) - first)
        return [block for block, owner in zip(self.shape.blocks, owners, strict=False) if owner == name]


def blocks_of(stage: Json) -> int:
    return int(stage["gpu_blocks"] + stage["cpu_blocks"])


def stage_on(replica: Json, name: str) -> Json | None:
    return next((stage for stage in replica["stages"] if stage["device"] == name), None)


def held_bytes(buffers: Mapping[str, Mapping[str, int]], most_weights: int) -> int:
    """Bytes by the load log, which counts all of a mapped file, also what other devices hold and nobody reads here."""
    weights = sum(found["model_bytes"] for found in buffers.values())
    rest = sum(found["kv_bytes"] + found["compute_bytes"] for found in buffers.values())
    return min(weights, most_weights) + rest


def weight_limit(shape: ModelShape, stage: Json) -> int:
    """The most that the weights of a stage can be."""
    heaviest = sorted((block.size_bytes for block in shape.blocks), reverse=True)[: blocks_of(stage)]
    ends = shape.weight_bytes - sum(block.size_bytes for block in shape.blocks)
    return sum(heaviest) + (ends if stage["master"] else 0)

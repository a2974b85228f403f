"""Memory that the devices of a deployment took beside what its plan counted, and what plans should keep free."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inventory.core.model_shape import ModelShape
from inventory.models import Profile
from serving.models import Deployment, ManagedProcess

WORTH_TELLING_SHARE = 0.01


@dataclass(frozen=True)
class TakenMemory:
    """One device: bytes by the plan with its compute buffer, bytes by the load log, and what its profile keeps free."""

    device: str
    predicted_bytes: int
    measured_bytes: int
    kept_free_bytes: int

    @property
    def overhead_bytes(self) -> int:
        """What plans should keep free; a device that took less than predicted gets no more for it."""
        return max(self.measured_bytes - self.predicted_bytes, 0)

    @property
    def error_before(self) -> float:
        return abs(self.measured_bytes / (self.predicted_bytes + self.kept_free_bytes) - 1)

    @property
    def is_needed(self) -> bool:
        change = abs(self.overhead_bytes - self.kept_free_bytes)
        return change > WORTH_TELLING_SHARE * self.predicted_bytes

    def to_dict(self) -> dict[str, int]:
        return {
            "overhead_bytes": self.overhead_bytes,
            "predicted_bytes": self.predicted_bytes,
            "measured_bytes": self.measured_bytes,
        }


def taken_memory(deployment: Deployment, profiles: Mapping[str, Profile]) -> list[TakenMemory]:
    """Every device whose processes said at their load what they hold."""
    shape = ModelShape.from_dict(deployment.model.shape)
    names = {profile.device_id: name for name, profile in profiles.items()}
    predicted, measured = Counter[str](), Counter[str]()
    for process in ManagedProcess.objects.filter(replica__deployment=deployment).select_related("replica"):
        name = names.get(process.device_id or 0)
        buffers = process.measured.get("buffers")
        if name is None or not buffers:
            continue
        stages = deployment.plan["replicas"][process.replica.index]["stages"]
        stage = next((one for one in stages if one["device"] == name), None)
        if stage is None:
            continue
        predicted[name] += round(stage["gpu_bytes"] + stage["ram_bytes"] + shape.compute_bytes())
        measured[name] += held_bytes(buffers, weight_limit(shape, stage))
    return [
        TakenMemory(name, predicted[name], measured[name], profiles[name].memory_overhead_bytes)
        for name in measured
    ]


def weight_limit(shape: ModelShape, stage: Mapping[str, Any]) -> int:
    """The most that the weights of a stage can be."""
    blocks = stage["gpu_blocks"] + stage["cpu_blocks"]
    heaviest = sorted((block.size_bytes for block in shape.blocks), reverse=True)[:blocks]
    ends = shape.weight_bytes - sum(block.size_bytes for block in shape.blocks)
    return sum(heaviest) + (ends if stage["master"] else 0)


def held_bytes(buffers: Mapping[str, Mapping[str, int]], most_weights: int) -> int:
    """Bytes by the load log, which counts all of a mapped file, also what other devices hold and nobody reads here."""
    weights = sum(found["model_bytes"] for found in buffers.values())
    rest = sum(found["kv_bytes"] + found["compute_bytes"] for found in buffers.values())
    return min(weights, most_weights) + rest

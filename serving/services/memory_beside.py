"""Memory that the devices of a deployment took beside what its plan counted, and what plans should keep free."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from inventory.models import Profile
from serving.core.stage_memory import PlannedMemory, held_bytes, stage_on, weight_limit
from serving.models import Deployment, ManagedProcess

WORTH_TELLING_SHARE = 0.01


@dataclass(frozen=True)
class TakenMemory:
    """One device: bytes predicted for its stages, bytes by the load log, and what its profile keeps free."""

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
    planned = PlannedMemory.of(
        deployment.model.shape, deployment.plan, deployment.cluster, deployment.context_tokens
    )
    names = {profile.device_id: name for name, profile in profiles.items()}
    predicted, measured = Counter[str](), Counter[str]()
    for process in latest_measured(deployment):
        name, index = names.get(process.device_id or 0), process.replica.index
        stage = stage_on(deployment.plan["replicas"][index], name) if name else None
        if name is None or stage is None:
            continue
        predicted[name] += planned.bytes_on(index, name)
        measured[name] += held_bytes(process.measured["buffers"], weight_limit(planned.shape, stage))
    return [
        TakenMemory(name, predicted[name], measured[name], profiles[name].memory_overhead_bytes)
        for name in measured
    ]


def latest_measured(deployment: Deployment) -> list[ManagedProcess]:
    """The present start, or the last, of each process that said at its load what it holds: earlier ones ended."""
    rows = ManagedProcess.objects.filter(replica__deployment=deployment).select_related("replica")
    latest = {
        (process.replica_id, process.device_id, process.kind): process
        for process in rows.order_by("pk")
        if process.measured.get("buffers")
    }
    return list(latest.values())

"""How far the weights of a replica are, by what its processes hold: the log says nothing for minutes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

STILL_MOVING_SECONDS = 60.0
BLIND_PATIENCE = 3.0  # times the deadline, where it cannot be seen whether anything moves


@dataclass(frozen=True)
class Holding:
    """What one process holds beside what the plan gives it; None where the host cannot tell."""

    resident_bytes: int
    planned_ram_bytes: int
    planned_gpu_bytes: int = 0  # of a GPU with memory of its own
    video_bytes: int | None = None
    received_bytes: int | None = None  # over RPC, most of it weights

    @property
    def is_seen(self) -> bool:
        """Whether one can tell how far it is."""
        return not self.planned_gpu_bytes or self.video_bytes is not None or self.received_bytes is not None

    @property
    def held_bytes(self) -> int:
        """No more than planned: a llama-server maps the whole file, also what it sends to its workers."""
        on_gpu = max(self.video_bytes or 0, self.received_bytes or 0)
        return min(self.resident_bytes, self.planned_ram_bytes) + min(on_gpu, self.planned_gpu_bytes)

    @property
    def moved_bytes(self) -> int:
        return self.resident_bytes + (self.video_bytes or 0) + (self.received_bytes or 0)


@dataclass
class Loading:
    """Bytes to be held in the end, how long that may take, and how far it is."""

    total_bytes: int
    deadline_seconds: float
    began: float
    moved_at: float
    held_bytes: int = 0
    moved_bytes: int = 0
    is_seen: bool = True

    def see(self, holdings: Sequence[Holding], now: float) -> None:
        self.is_seen = all(holding.is_seen for holding in holdings)
        self.held_bytes = max(self.held_bytes, sum(holding.held_bytes for holding in holdings))
        moved_bytes = sum(holding.moved_bytes for holding in holdings)
        if moved_bytes > self.moved_bytes:
            self.moved_bytes, self.moved_at = moved_bytes, now

    def fraction(self) -> float:
        return min(self.held_bytes / self.total_bytes, 0.99) if self.total_bytes else 0.0

    def remaining_seconds(self, now: float) -> float | None:
        done = self.fraction()
        return (now - self.began) * (1 - done) / done if self.is_seen and done > 0.05 else None

    def is_over(self, now: float) -> bool:
        """Past the deadline, and nothing moved for a while: a slow load that moves is left alone."""
        patience_seconds = self.deadline_seconds * (1.0 if self.is_seen else BLIND_PATIENCE)
        return now - self.began > patience_seconds and now - self.moved_at > STILL_MOVING_SECONDS

"""How thoroughly a device is timed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Grid:
    """Depths in blocks, micro-batches of decode and prompt lengths; rounds go on until they agree or time is up."""

    depths: tuple[int, ...]
    micro_batches: tuple[int, ...]
    prompts: tuple[int, ...]
    decode_tokens: int
    min_rounds: int
    max_rounds: int
    budget_seconds: float
    wanted_spread: float = 0.08

    @property
    def slots(self) -> int:
        return max(self.micro_batches)

    @property
    def context_tokens(self) -> int:
        """Of one server in all: the longest prompt beside every slot's few decoded tokens."""
        needed = max(self.prompts) + self.slots * (self.decode_tokens + 64)
        return -(-needed // 256) * 256


QUICK = Grid(
    depths=(2, 6),
    micro_batches=(1, 2, 4, 8),
    prompts=(64, 256, 512),
    decode_tokens=16,
    min_rounds=3,
    max_rounds=5,
    budget_seconds=6.0,
)
THOROUGH = Grid(
    depths=(2, 6, 10),
    micro_batches=(1, 2, 4, 8, 16),
    prompts=(64, 128, 256, 512, 1024, 2048),
    decode_tokens=24,
    min_rounds=5,
    max_rounds=12,
    budget_seconds=90.0,
)

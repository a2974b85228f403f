"""How thoroughly a device is timed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

SHALLOWEST_DEEP_TOKENS = 256
FEWEST_ROUNDS = 2
MOST_DECODE_TOKENS = 96


@dataclass(frozen=True)
class Grid:
    """Depths in blocks, micro-batches of decode and prompt lengths; rounds go on until they agree or time is up.

    Decode steps are timed with nearly empty caches, and those of `deep_micro_batches` with `deep_tokens` in each; as
    many as last `decode_seconds`, since requests begin some milliseconds apart and only what they do together counts.
    """

    depths: tuple[int, ...]
    micro_batches: tuple[int, ...]
    prompts: tuple[int, ...]
    decode_tokens: int
    decode_seconds: float
    min_rounds: int
    max_rounds: int
    budget_seconds: float
    wanted_spread: float = 0.08
    deep_micro_batches: tuple[int, ...] = ()
    deep_tokens: int = 0

    @property
    def slots(self) -> int:
        return max(self.micro_batches)

    def steps(self, step_seconds: float) -> int:
        """How many tokens each request decodes when a step takes that long."""
        wanted = ceil(self.decode_seconds / step_seconds)
        return min(max(wanted, self.decode_tokens), MOST_DECODE_TOKENS)

    @property
    def cells(self) -> int:
        return len(self.micro_batches) + len(self.deep_micro_batches) + len(self.prompts)

    def expected_rounds(self, round_seconds: float) -> int:
        """How many rounds are begun before the time is up; fewer when they agree early."""
        within_budget = ceil(self.budget_seconds / round_seconds)
        return min(max(within_budget, FEWEST_ROUNDS), self.max_rounds)

    @property
    def context_tokens(self) -> int:
        """Of one server in all: the longest prompt beside every slot's full cache and few decoded tokens."""
        full = max(self.deep_micro_batches, default=0) * self.deep_tokens
        needed = max(self.prompts) + full + self.slots * (MOST_DECODE_TOKENS + 64)
        return -(-needed // 256) * 256

    def within(self, context_train: int) -> Grid:
        """The grid without caches deeper than half of what the model was trained for."""
        if not context_train or self.deep_tokens <= context_train // 2:
            return self
        if context_train // 2 < SHALLOWEST_DEEP_TOKENS:
            return replace(self, deep_micro_batches=(), deep_tokens=0)
        return replace(self, deep_tokens=context_train // 2)


QUICK = Grid(
    depths=(2, 6),
    micro_batches=(1, 2, 4, 8),
    prompts=(64, 256, 512),
    decode_tokens=16,
    decode_seconds=0.15,
    min_rounds=3,
    max_rounds=5,
    budget_seconds=6.0,
    deep_micro_batches=(1,),
    deep_tokens=1024,
)
THOROUGH = Grid(
    depths=(2, 6, 10),
    micro_batches=(1, 2, 4, 8, 16),
    prompts=(64, 128, 256, 512, 1024, 2048),
    decode_tokens=24,
    decode_seconds=0.25,
    min_rounds=5,
    max_rounds=12,
    budget_seconds=90.0,
    deep_micro_batches=(1, 4),
    deep_tokens=1024,
)

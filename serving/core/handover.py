"""One prefill -> decode hand-over: which step may follow which, and what proves that a step was done.

Every call answers 200 even when nothing was saved, restored or reused, so each step is checked by its counts,
and the hand-over counts as done only when the decode replica says how many tokens it did not compute.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Step(StrEnum):
    PREFILL = "prefill"
    SAVE = "save"
    MOVE = "move"
    RESTORE = "restore"
    STREAM = "stream"
    HIT = "hit"
    FALLBACK = "fallback"


ORDER = [Step.PREFILL, Step.SAVE, Step.MOVE, Step.RESTORE, Step.STREAM]


class HandoverBroken(Exception):
    """A step did not do what it said; the prompt is computed again on the decode replica."""


@dataclass
class Handover:
    """The state of one hand-over; times are seconds on one clock."""

    prompt_tokens: int
    filename: str
    started_at: float
    step: Step = Step.PREFILL
    computed_tokens: int | None = None
    saved_bytes: int = 0
    cached_tokens: int = 0
    reason: str = ""
    waited_seconds: float = 0.0
    ended_at: dict[Step, float] = field(default_factory=dict)

    @property
    def handed_tokens(self) -> int:
        """All but the last prompt token: the decode replica must evaluate one to go on from it."""
        return self.prompt_tokens - 1

    @property
    def is_settled(self) -> bool:
        return self.step in (Step.HIT, Step.FALLBACK)

    @property
    def is_done(self) -> bool:
        """Whether the decode replica goes on from the cache that it was given, as far as is known."""
        return self.step in (Step.STREAM, Step.HIT)

    def reused_tokens(self, cached_tokens: int) -> int:
        """Of the tokens that the decode replica did not compute, those that nobody computed for this request."""
        if Step.RESTORE not in self.ended_at:
            return cached_tokens
        computed = self.handed_tokens if self.computed_tokens is None else self.computed_tokens
        return min(cached_tokens, max(self.handed_tokens - computed, 0))

    @property
    def may_have_restored(self) -> bool:
        return Step.MOVE in self.ended_at

    def waited(self, seconds: float) -> None:
        """The wait for a decode slot, between save and move, counts to neither."""
        self.waited_seconds = seconds

    def prefilled(self, n_computed: int | None, now: float) -> None:
        """`n_computed` leaves out what the prefill replica still had in its cache."""
        self.computed_tokens = n_computed
        self._advance(Step.PREFILL, now)

    def saved(self, n_saved: int, n_written: int, now: float) -> None:
        """A slot that does not exist also answers 200 with nothing saved; a full disk leaves a short file."""
        if n_saved != self.handed_tokens or n_written <= 0:
            raise HandoverBroken(f"saved {n_saved} of {self.handed_tokens} tokens in {n_written} bytes")
        self.saved_bytes = n_written
        self._advance(Step.SAVE, now)

    def moved(self, n_bytes: int, now: float) -> None:
        if n_bytes != self.saved_bytes:
            raise HandoverBroken(f"{n_bytes} of {self.saved_bytes} bytes arrived on the decode host")
        self._advance(Step.MOVE, now)

    def restored(self, n_restored: int, now: float) -> None:
        if n_restored != self.handed_tokens:
            raise HandoverBroken(f"restored {n_restored} of {self.handed_tokens} tokens")
        self._advance(Step.RESTORE, now)

    def streamed(self, cached_tokens: int) -> None:
        """Settle it by the count of cached tokens, the only proof that the restored cache was used."""
        if self.is_settled:
            return
        self.cached_tokens = cached_tokens
        if cached_tokens >= self.handed_tokens:
            self.step = Step.HIT
        else:
            self.fall_back(f"{cached_tokens} of {self.handed_tokens} tokens were reused")

    def fall_back(self, reason: str) -> None:
        if not self.is_settled:
            self.step = Step.FALLBACK
            self.reason = reason

    def seconds(self, step: Step) -> float | None:
        """How long a step took; None when it did not end."""
        if step not in self.ended_at:
            return None
        earlier = [self.ended_at[other] for other in ORDER[: ORDER.index(step)] if other in self.ended_at]
        seconds = self.ended_at[step] - (earlier[-1] if earlier else self.started_at)
        return seconds - self.waited_seconds if step == Step.MOVE else seconds

    def _advance(self, step: Step, now: float) -> None:
        assert self.step == step, f"{step} cannot follow {self.step}"
        self.ended_at[step] = now
        self.step = ORDER[ORDER.index(step) + 1]

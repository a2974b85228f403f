"""Many requests as a few numbers: counts, sums and spreads that can be added up."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any

FEWEST_TOKENS = 16  # the time of a shorter prompt is mostly that of what surrounds it
BIN = math.log(1.02)  # a percentile is off by one hundredth at most
LEAST = 1e-6
ERRORS = ("failed", "cut")


@dataclass(frozen=True)
class Look:
    """What is counted of one request. Times are seconds; None when a phase did not happen."""

    received_at: datetime
    outcome: str
    handover: str
    prefill_replica: int | None
    decode_replica: int | None
    queued_seconds: float | None
    prefill_seconds: float | None
    handover_seconds: float | None
    first_token_seconds: float | None
    total_seconds: float
    prefilled_tokens: int | None
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None

    @property
    def prompt_and_first_step(self) -> tuple[float, float]:
        return prompt_and_first_step(
            self.queued_seconds, self.prefill_seconds, self.handover_seconds, self.first_token_seconds
        )


class Spread:
    """A histogram of positive numbers with bins that grow with the number; its ends are exact.

    What was read from a text is taken apart only when somebody asks: most pages draw one spread of the four in a tally.
    """

    def __init__(self, text: str = "", least: float = math.inf, most: float = 0.0) -> None:
        self._bins: Counter[int] = Counter()
        self._texts = [text] if text else []
        self.least, self.most = least, most

    @property
    def bins(self) -> Counter[int]:
        """Number of a bin -> how many values lie in it."""
        if self._texts:
            numbers = list(map(int, " ".join(self._texts).split()))
            self._texts = []
            for number, count in zip(numbers[::2], numbers[1::2], strict=True):
                self._bins[number] += count
        return self._bins

    def add(self, value: float | None) -> None:
        if value is None:
            return
        self._bins[round(math.log(max(value, LEAST)) / BIN)] += 1
        self.least, self.most = min(self.least, value), max(self.most, value)

    def merge(self, other: Spread) -> None:
        self._bins.update(other._bins)
        self._texts += other._texts
        self.least, self.most = min(self.least, other.least), max(self.most, other.most)

    @property
    def count(self) -> int:
        return self.bins.total()

    def percentile(self, share: float) -> float | None:
        """Nearest-rank percentile; None of nothing."""
        if not self.bins:
            return None
        rank = int(share * self.count)
        if rank == 0 or rank >= self.count - 1:
            return self.least if rank == 0 else self.most
        for number in sorted(self.bins):
            rank -= self.bins[number]
            if rank < 0:
                return min(max(math.exp(number * BIN), self.least), self.most)
        raise AssertionError("the ranks of a spread are those of its bins")

    def to_list(self) -> list[Any]:
        """Bins as a text of numbers and counts, and both ends; empty of nothing."""
        if not self.bins:
            return []
        return [" ".join(f"{number} {count}" for number, count in self.bins.items()), self.least, self.most]

    @classmethod
    def from_list(cls, value: list[Any]) -> Spread:
        return cls(*value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spread) and (self.bins, self.least, self.most) == (
            other.bins,
            other.least,
            other.most,
        )


@dataclass
class Tally:
    """Requests added up; seconds are sums over all that reached their first token.

    Prompt tokens are those of prompts of which it is known how many tokens were reused; the others were computed.
    """

    requests: int = 0
    answered: int = 0
    errors: int = 0
    refused: int = 0
    hits: int = 0
    fallbacks: int = 0
    output_tokens: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    timed: int = 0
    queued_seconds: float = 0.0
    prefill_seconds: float = 0.0
    handover_seconds: float = 0.0
    first_step_seconds: float = 0.0
    queued: Spread = field(default_factory=Spread)
    first_token: Spread = field(default_factory=Spread)
    answer_rate: Spread = field(default_factory=Spread)
    prompt_rate: Spread = field(default_factory=Spread)

    def add(self, look: Look) -> None:
        self.requests += 1
        self.answered += look.outcome == "ok"
        self.errors += look.outcome in ERRORS
        self.refused += look.outcome == "refused"
        self.hits += look.handover == "hit"
        self.fallbacks += look.handover == "fallback"
        self.output_tokens += look.output_tokens or 0
        self.queued.add(look.queued_seconds)
        self.answer_rate.add(answer_rate(look.output_tokens, look.first_token_seconds, look.total_seconds))
        self.prompt_rate.add(prompt_rate(look.prefilled_tokens, look.prefill_seconds))
        if look.prompt_tokens is not None and look.cached_tokens is not None:
            self.prompt_tokens += look.prompt_tokens
            self.reused_tokens += look.cached_tokens
        if look.first_token_seconds is not None:
            self._add_phases(look)

    def _add_phases(self, look: Look) -> None:
        self.timed += 1
        self.first_token.add(look.first_token_seconds)
        self.queued_seconds += look.queued_seconds or 0.0
        self.handover_seconds += look.handover_seconds or 0.0
        prompt_seconds, first_step_seconds = look.prompt_and_first_step
        self.prefill_seconds += prompt_seconds
        self.first_step_seconds += first_step_seconds

    def merge(self, other: Tally) -> None:
        for name, theirs in vars(other).items():
            own = getattr(self, name)
            if isinstance(own, Spread):
                own.merge(theirs)
            else:
                setattr(self, name, own + theirs)

    def mean_seconds(self, phase: str) -> float | None:
        """Mean of a phase, such as `queued_seconds`, over the requests that reached their first token."""
        total: float = getattr(self, phase)
        return total / self.timed if self.timed else None

    def to_dict(self) -> dict[str, Any]:
        values = {known.name: getattr(self, known.name) for known in fields(self)}
        return {
            name: value.to_list() if isinstance(value, Spread) else value for name, value in values.items()
        }

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Tally:
        whole = cls()
        for name, part in value.items():
            setattr(whole, name, Spread.from_list(part) if isinstance(part, list) else part)
        return whole


def total(tallies: Iterable[Tally]) -> Tally:
    whole = Tally()
    for one in tallies:
        whole.merge(one)
    return whole


def prompt_and_first_step(
    queued_seconds: float | None,
    prefill_seconds: float | None,
    handover_seconds: float | None,
    first_token_seconds: float | None,
) -> tuple[float, float]:
    """Seconds of prefill, and of the first decode step, which is what is left of the time to the first token.

    The replica tells them apart at the end of its answer; of one that was stopped or cut, both are prefill.
    """
    known = (queued_seconds, prefill_seconds, handover_seconds)
    rest = max((first_token_seconds or 0.0) - sum(seconds or 0.0 for seconds in known), 0.0)
    return (rest, 0.0) if prefill_seconds is None else (prefill_seconds, rest)


def answer_rate(
    output_tokens: int | None, first_token_seconds: float | None, total_seconds: float
) -> float | None:
    """Decode rate of one request: tokens after the first, over the time they took."""
    if first_token_seconds is None or output_tokens is None or output_tokens < 2:
        return None
    seconds = total_seconds - first_token_seconds
    return (output_tokens - 1) / seconds if seconds > 0 else None


def prompt_rate(prefilled_tokens: int | None, prefill_seconds: float | None) -> float | None:
    """Prompt tokens computed per second; of a few tokens the time says nothing."""
    tokens = prefilled_tokens or 0
    return tokens / prefill_seconds if prefill_seconds and tokens > FEWEST_TOKENS else None

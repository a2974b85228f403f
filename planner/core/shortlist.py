"""The plans that a search has found so far, in the order that the formula gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from planner.core.assembly import Choice
from planner.core.congestion import Score
from planner.core.forecast import Forecast
from planner.core.objective import Objective
from planner.core.roles import score

Choices = tuple[Choice, ...]
TIE_SECONDS = 1e-6
SAME_SHARE = 0.005  # of simulated times and speeds


@dataclass
class Shortlist:
    """Different plans found so far with their place in the closed-form ranking."""

    objective: Objective
    scores: dict[Choices, Score] = field(default_factory=dict)

    def add(self, choices: Choices, seconds: float) -> None:
        if choices:
            key = tuple(sorted(choices, key=lambda choice: choice[0]))
            self.scores.setdefault(key, score([option for _, option in key], seconds, self.objective))

    def ranked(self) -> list[Choices]:
        return sorted(self.scores, key=self._place)

    def pick(self, equals: Sequence[Choices], told: Mapping[Choices, Forecast]) -> Choices:
        """Of plans that wait as long in simulation the one with the least wait by the formula.

        Among several the soonest first token decides, then the fastest slowest answer, then the closed-form ranking.
        """
        least = min(self.scores[key].wait_seconds for key in equals) + TIE_SECONDS
        left = [key for key in equals if self.scores[key].wait_seconds <= least]
        soonest = min(told[key].ttft_seconds for key in left) * (1 + SAME_SHARE)
        left = [key for key in left if told[key].ttft_seconds <= soonest]
        fastest = max(told[key].slowest_tokens_per_second for key in left) * (1 - SAME_SHARE)
        left = [key for key in left if told[key].slowest_tokens_per_second >= fastest]
        return min(left, key=self._place)

    def _place(self, key: Choices) -> tuple[Score, list[tuple[int, ...]]]:
        return self.scores[key], [devices for devices, _ in key]

"""The plans that a search has found so far, in the order that the formula gives them."""

from __future__ import annotations

from dataclasses import dataclass, field

from planner.core.assembly import Choice
from planner.core.congestion import Score
from planner.core.objective import Objective
from planner.core.roles import score


@dataclass
class Shortlist:
    """Different plans found so far with their place in the closed-form ranking."""

    objective: Objective
    scores: dict[tuple[Choice, ...], Score] = field(default_factory=dict)

    def add(self, choices: tuple[Choice, ...], seconds: float) -> None:
        if choices:
            key = tuple(sorted(choices, key=lambda choice: choice[0]))
            self.scores.setdefault(key, score([option for _, option in key], seconds, self.objective))

    def ranked(self) -> list[tuple[Choice, ...]]:
        return sorted(self.scores, key=lambda key: (self.scores[key], [devices for devices, _ in key]))

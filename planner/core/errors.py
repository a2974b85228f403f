from __future__ import annotations

from typing import Any


class BadDocument(ValueError):
    """A cluster or plan file that cannot be used; `problems` lists every fault with its path."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems

    def to_dict(self) -> dict[str, Any]:
        return {"error": "bad input", "problems": self.problems}


class NotJson(ValueError):
    """Bytes that hold no JSON; the words go on after the name of their file."""

    def __init__(self, fault: str, *, is_other_kind: bool = False) -> None:
        super().__init__(fault)
        self.is_other_kind = is_other_kind  # nothing that could be mended in an editor


class NoFeasiblePlan(Exception):
    """No plan holds the limits: which limit binds, by how much, and the smallest change that would help."""

    def __init__(self, limit: str, text: str, shortfall: float, unit: str, remedy: str) -> None:
        super().__init__(f"{text} {remedy}")
        self.limit = limit
        self.text = text
        self.shortfall = shortfall
        self.unit = unit
        self.remedy = remedy

    def to_dict(self) -> dict[str, Any]:
        return {
            "error": "no feasible plan",
            "limit": self.limit,
            "text": self.text,
            "shortfall": self.shortfall,
            "unit": self.unit,
            "remedy": self.remedy,
        }

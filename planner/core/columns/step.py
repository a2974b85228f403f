from __future__ import annotations

from dataclasses import dataclass

from planner.core.assembly import Choice


@dataclass(frozen=True)
class ColumnsStep:
    """Progress; the last one carries the best plan found, its value and the bound that no plan can beat."""

    message: str
    fraction: float
    choices: tuple[Choice, ...] = ()
    seconds: float | None = None
    bound_seconds: float | None = None

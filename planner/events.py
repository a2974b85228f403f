"""What a plan run tells the pages that watch it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypedDict

from inventory.core.quantities import percent_text
from planner.models import Generation

NOTHING_TO_GAIN_SECONDS = 1e-9
SAME_SHARE = 1e-9


class Point(TypedDict):
    """One generation on the convergence chart."""

    number: int
    best_seconds: float
    mean_seconds: float | None
    bound_seconds: float | None
    evaluations: int


class GenerationsDone(TypedDict):
    """Generations since the last message; `is_new_plan` when the best plan is another one now."""

    type: Literal["generations"]
    points: list[Point]
    best_text: str
    gap_text: str
    is_new_plan: bool


def generations_done(rows: Sequence[Generation], *, is_new_plan: bool) -> GenerationsDone:
    points = [point(row) for row in rows]
    return {
        "type": "generations",
        "points": points,
        "best_text": best_text(points[-1]),
        "gap_text": gap_text(points[-1]),
        "is_new_plan": is_new_plan,
    }


def point(row: Generation) -> Point:
    return {
        "number": row.number,
        "best_seconds": row.best_seconds,
        "mean_seconds": row.mean_seconds,
        "bound_seconds": bound_seconds(row),
        "evaluations": row.evaluations,
    }


def bound_seconds(row: Generation) -> float | None:
    """No plan waits less than not at all."""
    if row.bound_seconds is None and row.best_seconds <= NOTHING_TO_GAIN_SECONDS:
        return 0.0
    return row.bound_seconds


def gap(last: Point) -> float | None:
    """How far the best may be from the optimum, as a fraction of the best; None without a bound."""
    if last["best_seconds"] <= NOTHING_TO_GAIN_SECONDS:
        return 0.0
    if last["bound_seconds"] is None:
        return None
    return max(0.0, 1.0 - last["bound_seconds"] / last["best_seconds"])


def search_seconds_text(seconds: float) -> str:
    """In seconds from the first generation to the last: a unit that changes hides how the search goes on."""
    return f"{seconds:,.2f} s"


def best_text(last: Point | None) -> str:
    """Longest wait of the best plan so far; a dash before the first."""
    return "–" if last is None else search_seconds_text(last["best_seconds"])


def gap_text(last: Point | None) -> str:
    """The same in words; a dash before the first result."""
    if last is None:
        return "–"
    share = gap(last)
    if share is None:
        return "not known yet"
    return "0 %: it is the best by the formula" if share <= SAME_SHARE else percent_text(share)


def run_snapshot(points: list[Point], plan: dict[str, Any] | None, stages: list[Any]) -> dict[str, Any]:
    """What the socket adds to a job's snapshot."""
    return {
        "generations": points,
        "best_text": best_text(points[-1] if points else None),
        "gap_text": gap_text(points[-1] if points else None),
        "plan": plan,
        "stages": stages,
    }

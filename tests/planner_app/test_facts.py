"""What a plan's page says about the plans of other planners, and beside another plan."""

from __future__ import annotations

from typing import Any

import pytest

from planner.charts.facts import baseline_note, comparison_rows, refusal_facts, tile
from planner.core.counted import counted


@pytest.mark.parametrize(
    ("wait", "holds_floor", "said"),
    [(20.0, True, ""), (9.98, True, ""), (4.0, True, "do not allow"), (4.0, False, "breaks the floor")],
)
def test_a_baseline_that_waits_less_tells_what_it_breaks(wait: float, holds_floor: bool, said: str) -> None:
    note = baseline_note({"max_wait_seconds": wait, "holds_floor": holds_floor}, own_seconds=10.0)
    assert said in note
    assert bool(note) == bool(said)


def test_a_comparison_gives_each_number_its_unit() -> None:
    sides: list[dict[str, Any]] = [
        {"tiles": [tile("Longest wait", text, "", ""), tile("Requests at once", "4", "", "")], "inputs": []}
        for text in ("47.1 s", "1 min")
    ]
    rows = comparison_rows(*sides)
    assert [(row["left"], row["right"], row["differs"]) for row in rows] == [
        ("47.1 s", "1 min", True),
        ("4", "4", False),
    ]


@pytest.mark.parametrize(
    ("shortfall", "unit", "said"),
    [(1, "replicas", "1 replica"), (2, "devices", "2 devices"), (1200, "devices", "1,200 devices")],
)
def test_what_is_missing_is_counted_in_words(shortfall: int, unit: str, said: str) -> None:
    assert refusal_facts({"limit": "replicas", "shortfall": shortfall, "unit": unit})["missing"] == said


def test_one_is_said_as_one_and_thousands_are_set_apart() -> None:
    assert [counted(count, "block") for count in (0, 1, 12_345)] == ["0 blocks", "1 block", "12,345 blocks"]
    assert [counted(count, "entry", "entries") for count in (1, 2)] == ["1 entry", "2 entries"]

"""What a plan's page says about the plans of other planners, and beside another plan."""

from __future__ import annotations

from typing import Any

import pytest

from planner.charts.facts import baseline_note, comparison_rows, tile


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
    assert rows[0] == {"label": "Longest wait", "left": "47.1 s", "right": "1 min", "differs": True}
    assert rows[1] == {"label": "Requests at once", "left": "4", "right": "4", "differs": False}

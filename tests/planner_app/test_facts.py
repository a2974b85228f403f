"""What a plan's page says about the plans of other planners."""

from __future__ import annotations

import pytest

from planner.charts.facts import baseline_note


@pytest.mark.parametrize(
    ("wait", "holds_floor", "said"),
    [(20.0, True, ""), (9.98, True, ""), (4.0, True, "do not allow"), (4.0, False, "breaks the floor")],
)
def test_a_baseline_that_waits_less_tells_what_it_breaks(wait: float, holds_floor: bool, said: str) -> None:
    note = baseline_note({"max_wait_seconds": wait, "holds_floor": holds_floor}, own_seconds=10.0)
    assert said in note
    assert bool(note) == bool(said)

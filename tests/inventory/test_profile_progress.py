"""How far the profiling of several devices is, and how long it still takes."""

from __future__ import annotations

import pytest

from inventory.profiling.run import Watch
from inventory.profiling.settings import QUICK
from tests.inventory.conftest import MakeProgress


@pytest.mark.django_db(transaction=True)
def test_nothing_is_foretold_before_every_device_of_every_machine_can_be_judged(
    make_progress: MakeProgress,
) -> None:
    watch = Watch(make_progress(), [["box-1", "box-2"], ["pi"]])
    watch.report("box-1", "timing", 0.5, 3.0)
    assert watch.remaining_seconds() is None
    watch.report("pi", "timing", 0.5, 4.0)
    assert watch.remaining_seconds() is None  # box-2 waits for box-1
    watch.report("box-1", "timed", 1.0, 0.0)
    watch.report("box-2", "timing", 0.5, 7.0)
    assert watch.remaining_seconds() == 7.0


@pytest.mark.django_db(transaction=True)
def test_devices_of_one_machine_take_their_times_together(make_progress: MakeProgress) -> None:
    watch = Watch(make_progress(), [["box-1", "box-2"]])
    watch.report("box-1", "timing", 0.5, 3.0)
    watch.report("box-2", "timing", 0.5, 7.0)
    assert watch.remaining_seconds() == 10.0


@pytest.mark.django_db(transaction=True)
def test_a_device_that_needs_more_rounds_than_thought_does_not_go_back(make_progress: MakeProgress) -> None:
    watch = Watch(make_progress(), [["box-1"]])
    watch.report("box-1", "timing", 0.6, None)
    watch.report("box-1", "timing", 0.5, None)
    assert watch.shares == {"box-1": 0.6}


@pytest.mark.parametrize(("round_seconds", "rounds"), [(0.1, 5), (2.0, 3), (6.0, 2), (60.0, 2)])
def test_rounds_are_expected_within_the_time_but_never_one_alone(round_seconds: float, rounds: int) -> None:
    assert QUICK.expected_rounds(round_seconds) == rounds


def test_requests_decode_long_enough_to_do_most_of_it_together() -> None:
    assert QUICK.steps(0.002) == 75
    assert QUICK.steps(0.1) == QUICK.decode_tokens
    assert QUICK.steps(1e-6) * QUICK.slots < QUICK.context_tokens

"""What may be tried again, and what may not."""

from __future__ import annotations

from serving.core.retries import PoisonList, RetryBudget


def test_retries_are_a_fifth_of_the_traffic() -> None:
    budget = RetryBudget()
    for _ in range(1000):
        budget.request()
    taken = sum(budget.take() for _ in range(100))
    assert taken == 10
    for _ in range(50):
        budget.request()
    assert sum(budget.take() for _ in range(100)) in (9, 10)


def test_a_body_that_crashed_two_replicas_is_refused_for_a_while() -> None:
    poison = PoisonList(crashes=2, seconds=300.0)
    poison.crashed("body", 1, 0.0)
    assert not poison.is_poison("body", 1.0)
    poison.crashed("body", 2, 1.0)
    assert poison.is_poison("body", 2.0) and not poison.is_poison("other", 2.0)
    assert not poison.is_poison("body", 302.0)


def test_equal_requests_that_one_crash_ended_count_once() -> None:
    poison = PoisonList(crashes=2, seconds=300.0)
    for _ in range(5):
        poison.crashed("body", 1, 0.0)
    assert not poison.is_poison("body", 1.0)
    poison.crashed("body", 1, 60.0)
    assert poison.is_poison("body", 61.0)

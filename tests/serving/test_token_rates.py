"""Tokens per minute of a key: what is left, when it comes back, and that it is what was really used."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.core.rates import NeverFits, OverRate, TokenRates


def test_a_minutes_worth_can_be_used_at_once_and_comes_back_evenly() -> None:
    rates = TokenRates()
    rates.reserve("key", 600, 600, now=0.0)
    with pytest.raises(OverRate) as refusal:
        rates.reserve("key", 600, 50, now=1.0)
    assert refusal.value.retry_after_seconds == pytest.approx(4.0)
    rates.reserve("key", 600, 50, now=5.0)
    assert rates.left("key", 600, now=5.0) == 0


def test_a_long_answer_is_paid_back_before_the_next_prompt() -> None:
    rates = TokenRates()
    rates.reserve("key", 60, 10, now=0.0)
    rates.settle("key", 60, reserved=10, used=10 + 80, now=0.0)
    with pytest.raises(OverRate) as refusal:
        rates.reserve("key", 60, 1, now=0.0)
    assert refusal.value.retry_after_seconds == pytest.approx(31.0)


def test_what_was_reserved_and_not_used_is_given_back() -> None:
    rates = TokenRates()
    rates.reserve("key", 60, 40, now=0.0)
    rates.settle("key", 60, reserved=40, used=0, now=0.0)
    assert rates.left("key", 60, now=0.0) == 60


def test_a_prompt_over_a_whole_minute_is_told_that_waiting_does_not_help() -> None:
    with pytest.raises(NeverFits, match="61 tokens"):
        TokenRates().reserve("key", 60, 61, now=0.0)


def test_keys_do_not_share_and_a_lowered_limit_holds_at_once() -> None:
    rates = TokenRates()
    rates.reserve("one", 100, 100, now=0.0)
    rates.reserve("other", 100, 100, now=0.0)
    assert rates.left("third", 100, now=0.0) == 100
    assert rates.left("third", 10, now=0.0) == 10


@given(
    st.lists(st.tuples(st.floats(0, 30), st.integers(1, 80), st.integers(0, 200)), min_size=1, max_size=40)
)
def test_no_more_is_used_over_time_than_the_limit_and_the_last_answers(
    requests: list[tuple[float, int, int]],
) -> None:
    rates, now, used, longest = TokenRates(), 0.0, 0, 0
    for pause, prompt, answer in requests:
        now += pause
        try:
            rates.reserve("key", 100, prompt, now)
        except OverRate:
            continue
        rates.settle("key", 100, prompt, prompt + answer, now)
        used += prompt + answer
        longest = max(longest, answer)
    assert used <= 100 + now * 100 / 60 + longest + 1e-6

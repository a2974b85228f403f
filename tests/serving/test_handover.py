"""The steps of one prefill -> decode hand-over."""

from __future__ import annotations

import pytest

from serving.core.handover import Handover, HandoverBroken, Step


def restored() -> Handover:
    handover = Handover(prompt_tokens=101, filename="x", started_at=10.0)
    handover.prefilled(100, 12.0)
    handover.saved(100, 5000, 12.5)
    handover.moved(5000, 13.0)
    handover.restored(100, 13.25)
    return handover


def test_a_handover_is_done_only_when_the_cache_was_used() -> None:
    handover = restored()
    assert not handover.is_settled
    handover.streamed(100)
    assert handover.step == Step.HIT


def test_a_restore_that_was_not_used_is_a_fallback() -> None:
    handover = restored()
    handover.streamed(0)
    assert (handover.step, handover.reason) == (Step.FALLBACK, "0 of 100 tokens were reused")


@pytest.mark.parametrize(("n_saved", "n_written"), [(0, 0), (99, 5000), (100, 0)])
def test_a_save_that_saved_nothing_is_noticed(n_saved: int, n_written: int) -> None:
    handover = Handover(101, "x", 0.0)
    handover.prefilled(100, 1.0)
    with pytest.raises(HandoverBroken):
        handover.saved(n_saved, n_written, 2.0)


def test_a_truncated_file_is_noticed_before_it_is_restored() -> None:
    handover = Handover(101, "x", 0.0)
    handover.prefilled(100, 1.0)
    handover.saved(100, 5000, 2.0)
    with pytest.raises(HandoverBroken, match="4999 of 5000"):
        handover.moved(4999, 3.0)


def test_steps_keep_their_order() -> None:
    handover = Handover(101, "x", 0.0)
    with pytest.raises(AssertionError):
        handover.moved(0, 1.0)


def test_every_step_is_timed() -> None:
    handover = restored()
    seconds = [handover.seconds(step) for step in (Step.PREFILL, Step.SAVE, Step.MOVE, Step.RESTORE)]
    assert seconds == [2.0, 0.5, 0.5, 0.25]
    assert Handover(101, "x", 0.0).seconds(Step.SAVE) is None


def test_the_first_reason_of_a_fallback_stays() -> None:
    handover = Handover(101, "x", 0.0)
    handover.fall_back("the prefill host did not answer")
    handover.streamed(100)
    assert handover.reason == "the prefill host did not answer"

"""What a person reads when a slice does not load."""

from __future__ import annotations

import pytest

from inventory.profiling.bench import EndedWithoutCause, not_started


def test_the_cause_stands_once_and_the_lines_of_the_log_stay_whole() -> None:
    long = "error loading model: " + "x" * 500
    log = f"exit status 1\nloading\n{long}\nmain: exiting due to model loading error\n"
    cause, *lines = str(not_started(1, log)).splitlines()
    assert cause == f"llama-server did not start with a slice of 1 block: {long}"
    assert lines == log.splitlines()


def test_a_server_that_a_signal_ended_is_told_with_what_that_means() -> None:
    log = "exit status 132\n0.00.2 I cmn          init: llama threadpool init, n_threads = 1\n"
    error = not_started(2, log)
    cause, *lines = str(error).splitlines()
    assert cause.endswith(
        "this llama.cpp was built for a newer processor; install one that is built for this one"
    )
    assert lines == log.splitlines()
    assert not isinstance(error, EndedWithoutCause), "the signal is the cause"


@pytest.mark.parametrize("said", ["", "0.00.002.438 I cmn  common_param: verbosity = 3\n"])
def test_a_log_whose_last_lines_were_lost_is_told_as_one_without_a_cause(said: str) -> None:
    error = not_started(2, f"exit status 1\n{said}")
    assert isinstance(error, EndedWithoutCause)
    assert str(error).splitlines()[0].endswith("2 blocks: exit status 1, and its log does not say why")

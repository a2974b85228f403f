"""What a person reads when a slice does not load."""

from __future__ import annotations

from inventory.profiling.bench import not_started


def test_the_cause_stands_once_and_the_lines_of_the_log_stay_whole() -> None:
    long = "error loading model: " + "x" * 500
    log = f"exit status 1\nloading\n{long}\nmain: exiting due to model loading error\n"
    cause, *lines = not_started(1, log).splitlines()
    assert cause == f"llama-server did not start with a slice of 1 block: {long}"
    assert lines == log.splitlines()
    assert not_started(2, "").startswith(
        "llama-server did not start with a slice of 2 blocks: its log is empty"
    )


def test_a_server_that_a_signal_ended_is_told_with_what_that_means() -> None:
    log = "exit status 132\n0.00.2 I cmn          init: llama threadpool init, n_threads = 1\n"
    cause, *lines = not_started(2, log).splitlines()
    assert cause.endswith(
        "this llama.cpp was built for a newer processor; install one that is built for this one"
    )
    assert lines == log.splitlines()

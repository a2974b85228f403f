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

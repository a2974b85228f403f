"""Whether a queue has been long for long."""

from __future__ import annotations

from collections.abc import Sequence

Look = tuple[float, int]  # time in seconds, requests waiting


def long_for_seconds(looks: Sequence[Look], longest: int, now: float) -> float:
    """For how long the queue has held more than `longest` requests until `now`; 0 when it does not.

    `looks` stand in the order of their times.
    """
    began = None
    for at, waiting in looks:
        if waiting <= longest:
            began = None
        elif began is None:
            began = at
    return 0.0 if began is None else now - began

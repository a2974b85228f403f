"""When a failed replica may be started again."""

from __future__ import annotations

WAITS_SECONDS = (0.0, 10.0, 60.0, 300.0)


def is_over(restarts: int) -> bool:
    """No further try is made without a person."""
    return restarts >= len(WAITS_SECONDS)


def is_due(restarts: int, waited_seconds: float) -> bool:
    """After each try in a row the wait grows; after the last one a person has to look."""
    return not is_over(restarts) and waited_seconds >= WAITS_SECONDS[restarts]

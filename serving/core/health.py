"""Whether a replica may be given requests, judged by how its last ones ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Fault = Literal["soft", "refused", "silent"]

SOFT_FAILURES = 3
FIRST_EJECTION_SECONDS = 1.0
LONGEST_EJECTION_SECONDS = 30.0


@dataclass
class Health:
    """In service, ejected for a while, or on trial with one request after an ejection."""

    failures: int = 0
    ejections: int = 0
    ejected_until: float | None = None

    def in_service(self, now: float) -> bool:
        return self.ejected_until is None or now >= self.ejected_until

    @property
    def on_trial(self) -> bool:
        """Ejected once and not yet proven: it gets one request at a time."""
        return self.ejected_until is not None

    def limit(self, slots: int) -> int:
        return min(slots, 1) if self.on_trial else slots

    def succeed(self) -> bool:
        """An answer arrived; true when this ends an ejection."""
        came_back = self.on_trial
        self.failures = self.ejections = 0
        self.ejected_until = None
        return came_back

    def fail(self) -> bool:
        """A soft failure; true when there have been enough in a row to eject."""
        self.failures += 1
        return self.failures >= SOFT_FAILURES

    def eject(self, now: float, fault: Fault) -> None:
        """Out of service, for twice as long each time in a row; to try a silent one costs a whole deadline."""
        doubled = FIRST_EJECTION_SECONDS * 2**self.ejections
        seconds = LONGEST_EJECTION_SECONDS if fault == "silent" else min(doubled, LONGEST_EJECTION_SECONDS)
        self.ejected_until = now + seconds
        self.ejections += 1
        self.failures = 0


def may_eject(ejected: int, pool: int) -> bool:
    """With more than half of the pool out, the fault is likelier in the requests than in the replicas."""
    return 2 * (ejected + 1) <= pool

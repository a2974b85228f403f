"""How many of something each name has at the moment: connections of an address, requests of a key."""

from __future__ import annotations

from collections import Counter


class Crowd:
    """Counts that never forget a departure: a name without any is not kept."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self.total = 0

    def enter(self, name: str) -> int:
        """The number with this one."""
        self.total += 1
        self._counts[name] += 1
        return self._counts[name]

    def leave(self, name: str) -> None:
        self.total -= 1
        self._counts[name] -= 1
        assert self._counts[name] >= 0, "nobody leaves who did not enter"
        if not self._counts[name]:
            del self._counts[name]

    def count(self, name: str) -> int:
        return self._counts[name]

"""When a failed request may be tried again, and which requests may not be tried at all."""

from __future__ import annotations

RETRY_SHARE = 0.2
BURST = 10.0


class RetryBudget:
    """Retries are at most a fifth of the traffic, so that an outage is not doubled by them."""

    def __init__(self) -> None:
        self._tokens = BURST

    def request(self) -> None:
        self._tokens = min(BURST, self._tokens + RETRY_SHARE)

    def take(self) -> bool:
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True


class PoisonList:
    """Bodies during which replicas crashed: the same body again would take down the next replica."""

    def __init__(self, crashes: int, seconds: float) -> None:
        self.crashes = crashes
        self.seconds = seconds
        self._seen: dict[str, tuple[int, float]] = {}

    @property
    def is_empty(self) -> bool:
        return not self._seen

    def crashed(self, body_hash: str, now: float) -> None:
        self._forget(now)
        count, _ = self._seen.get(body_hash, (0, 0.0))
        self._seen[body_hash] = (count + 1, now + self.seconds)

    def is_poison(self, body_hash: str, now: float) -> bool:
        count, until = self._seen.get(body_hash, (0, 0.0))
        return count >= self.crashes and now < until

    def _forget(self, now: float) -> None:
        self._seen = {body: seen for body, seen in self._seen.items() if now < seen[1]}

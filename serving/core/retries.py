"""When a failed request may be tried again, and which requests may not be tried at all."""

from __future__ import annotations

from dataclasses import dataclass

RETRY_SHARE = 0.2
BURST = 10.0
ONE_CRASH_SECONDS = 5.0


@dataclass(frozen=True)
class Crash:
    replica: int
    at: float


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
        self._seen: dict[str, list[Crash]] = {}

    @property
    def is_empty(self) -> bool:
        return not self._seen

    def crashed(self, body_hash: str, replica: int, now: float) -> None:
        """Note a crash; equal requests that the same crash ended together count once."""
        self._forget(now)
        crashes = self._seen.setdefault(body_hash, [])
        if not any(crash.replica == replica and now - crash.at < ONE_CRASH_SECONDS for crash in crashes):
            crashes.append(Crash(replica, now))

    def is_poison(self, body_hash: str, now: float) -> bool:
        self._forget(now)
        return len(self._seen.get(body_hash, [])) >= self.crashes

    def _forget(self, now: float) -> None:
        self._seen = {
            body: crashes for body, crashes in self._seen.items() if now - crashes[-1].at < self.seconds
        }

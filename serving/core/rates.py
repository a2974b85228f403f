"""Tokens per minute of each key: a bucket of one minute that fills evenly and is told what was really used."""

from __future__ import annotations

from dataclasses import dataclass

MINUTE_SECONDS = 60.0


class OverRate(Exception):
    """The key has used up its tokens for now."""

    def __init__(self, reason: str, retry_after_seconds: float) -> None:
        super().__init__(reason)
        self.retry_after_seconds = retry_after_seconds


class NeverFits(Exception):
    """One prompt is more than a whole minute allows; waiting does not help."""


@dataclass
class Bucket:
    """`level` is what may still be used; it is below zero while answers were longer than what was left."""

    level: float
    at: float


class TokenRates:
    """Prompts are reserved before they run, since their length is known; answers are charged when they end."""

    def __init__(self) -> None:
        self._buckets: dict[str, Bucket] = {}

    def reserve(self, key: str, per_minute: int, tokens: int, now: float) -> None:
        """Take the tokens of a prompt, or OverRate with the seconds until there are enough."""
        if tokens > per_minute:
            raise NeverFits(
                f"the prompt has {tokens} tokens, and this key may use {per_minute} per minute; "
                "shorten it, or have the limit of the key raised"
            )
        bucket = self._bucket(key, per_minute, now)
        missing = max(tokens, 1) - bucket.level
        if missing > 0:
            raise OverRate(
                f"this key may use {per_minute} tokens per minute; {max(0, int(bucket.level))} are left, "
                f"and the prompt has {tokens}",
                missing * MINUTE_SECONDS / per_minute,
            )
        bucket.level -= tokens

    def settle(self, key: str, per_minute: int, reserved: int, used: int, now: float) -> None:
        """Replace what was reserved by what was used, prompt and answer together."""
        bucket = self._bucket(key, per_minute, now)
        bucket.level = min(float(per_minute), bucket.level + reserved - used)

    def left(self, key: str, per_minute: int, now: float) -> int:
        return max(0, int(self._bucket(key, per_minute, now).level))

    def _bucket(self, key: str, per_minute: int, now: float) -> Bucket:
        bucket = self._buckets.setdefault(key, Bucket(float(per_minute), now))
        filled = bucket.level + (now - bucket.at) * per_minute / MINUTE_SECONDS
        bucket.level, bucket.at = min(float(per_minute), filled), now
        return bucket

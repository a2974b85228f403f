"""The clock's sign of life, kept in Redis, where the supervisor and the pages see how old it is."""

from __future__ import annotations

import redis
from django.conf import settings

KEY = "e2llm:beat"
KEPT_SECONDS = 30 * 86_400  # what is left of it tells the age, whatever the clocks of the machines say
SILENT_SECONDS = 60.0  # a beat that lives ticks every 5 s
ANSWER_SECONDS = 2.0


def give() -> None:
    """Beat lives now; without Redis there is nobody to tell, and beat itself complains of that."""
    try:
        with _client() as client:
            client.set(KEY, "", ex=KEPT_SECONDS)
    except (redis.RedisError, OSError):
        pass


def silence() -> float | None:
    """Seconds since the last sign; None while there never was one, or Redis does not say."""
    try:
        with _client() as client:
            left_ms = client.pttl(KEY)
    except (redis.RedisError, OSError):
        return None
    return KEPT_SECONDS - left_ms / 1000 if left_ms >= 0 else None


def is_lost() -> bool:
    """Beat has been silent for longer than one that lives."""
    seconds = silence()
    return seconds is not None and seconds > SILENT_SECONDS


def _client() -> redis.Redis:
    limits = {"socket_timeout": ANSWER_SECONDS, "socket_connect_timeout": ANSWER_SECONDS}
    return redis.Redis.from_url(settings.REDIS_URL, **limits)

"""Beat's sign of life: given at each tick, and missed by the supervisor and on the home page."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from django.conf import LazySettings

from e2llm_web import home, parts, pulse
from tests.conftest import wait_until


@pytest.fixture
def store(valkey_url: str, settings: LazySettings) -> Iterator[redis.Redis]:
    """A database of the Redis that no worker of another test reads."""
    settings.REDIS_URL = valkey_url.replace("db=0", "db=1")
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        yield client
        client.flushdb()


def give(store: redis.Redis, seconds_ago: float) -> None:
    store.set(pulse.KEY, "", ex=int(pulse.KEPT_SECONDS - seconds_ago))


def test_a_beat_that_lives_gives_a_sign_again_and_again(
    store: redis.Redis, settings: LazySettings, tmp_path: Path
) -> None:
    environment = {**os.environ, "E2LLM_DATA": str(tmp_path), "REDIS_URL": settings.REDIS_URL}
    beat = parts.beat(environment | {"DJANGO_SETTINGS_MODULE": "e2llm_web.settings"})
    process = subprocess.Popen(beat.argv, env=beat.environment)
    try:
        for _ in range(2):
            wait_until(lambda: pulse.silence() is not None, "beat gives a sign of life")
            store.delete(pulse.KEY)
    finally:
        process.kill()
        process.wait()


async def test_the_supervisor_misses_a_beat_that_was_heard_before(store: redis.Redis) -> None:
    is_silent = parts.beat({}).is_silent
    assert is_silent is not None
    assert not await is_silent(), "nobody knows of one yet"
    give(store, 0)
    assert not await is_silent()
    give(store, 2 * pulse.SILENT_SECONDS)
    assert await is_silent()


async def test_a_redis_that_is_gone_says_nothing_of_beat(settings: LazySettings, tmp_path: Path) -> None:
    settings.REDIS_URL = f"unix://{tmp_path}/gone.sock"
    pulse.give()
    assert not pulse.is_lost()


@pytest.mark.django_db
def test_the_home_page_names_a_silent_beat(store: redis.Redis) -> None:
    give(store, 0)
    assert home.attention(None) == []
    give(store, 120)
    (concern,) = home.attention(None)
    assert concern.title.startswith("Beat, the clock, has given no sign of life for 2 min")

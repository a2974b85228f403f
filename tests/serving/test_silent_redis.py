"""Redis is a bell: while it is down or silent, nothing of ours breaks or waits for it."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from asgiref.sync import async_to_sync
from django.conf import LazySettings

from serving import events
from serving.runner import reconcile

TICK: events.ReplicaSuspect = {"type": "replica.suspect", "replica": 1, "reason": "silent"}


@pytest.fixture
def silent() -> Iterator[str]:
    """Takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"redis://127.0.0.1:{server.getsockname()[1]}/0"


@pytest.fixture
def refusing() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"redis://127.0.0.1:{server.getsockname()[1]}/0"


def test_a_pass_without_redis_is_left_out_in_one_line(
    db: None, refusing: str, settings: LazySettings, caplog: pytest.LogCaptureFixture
) -> None:
    settings.REDIS_URL = refusing
    reconcile.reconcile_alone()
    assert [record.exc_info for record in caplog.records] == [None]
    assert "left out until Redis answers again" in caplog.text


def test_the_next_pass_goes_on_when_redis_is_back(
    valkey_url: str, refusing: str, settings: LazySettings
) -> None:
    settings.REDIS_URL = refusing
    with events.only_one("test-pass", 5.0) as is_alone:
        assert not is_alone
    settings.REDIS_URL = valkey_url
    with events.only_one("test-pass", 5.0) as is_alone, events.only_one("test-pass", 5.0) as is_second:
        assert (is_alone, is_second) == (True, False)


def test_a_fault_inside_is_not_taken_for_one_of_redis(valkey_url: str) -> None:
    with pytest.raises(OSError, match="of the work itself"), events.only_one("test-fault", 5.0):
        raise OSError("of the work itself")
    with events.only_one("test-fault", 5.0) as is_alone:
        assert is_alone


def test_a_live_update_gives_up_on_a_silent_redis(
    silent: str, settings: LazySettings, caplog: pytest.LogCaptureFixture
) -> None:
    layer = settings.CHANNEL_LAYERS["default"]
    settings.CHANNEL_LAYERS = {"default": {**layer, "CONFIG": {"hosts": [silent]}}}
    async_to_sync(events.publish)(TICK)
    assert "Redis is silent" in caplog.text

"""A queue that is down: the form is answered all the same, and the work starts when the queue is back."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
from django.conf import LazySettings
from django.utils import timezone

from e2llm_web import embedded_redis
from jobs import services
from jobs.models import Job
from tests.conftest import valkey_answers, wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def queue_folder(tmp_path: Path, settings: LazySettings) -> Path:
    """The data folder whose Valkey the product is pointed at; nothing runs there yet."""
    settings.CELERY_BROKER_URL = embedded_redis.celery_url(embedded_redis.url(tmp_path))
    return tmp_path


class Listener:
    """Stands where Valkey should and counts who comes; it hangs up, or holds on without a word."""

    def __init__(self, path: Path, *, hangs_up: bool) -> None:
        path.parent.mkdir(parents=True)
        self.hangs_up = hangs_up
        self.guests: list[socket.socket] = []
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(str(path))
        self.server.listen()
        threading.Thread(target=self._receive, daemon=True).start()

    def _receive(self) -> None:
        with suppress(OSError):
            while True:
                guest, _ = self.server.accept()
                self.guests.append(guest)
                if self.hangs_up:
                    guest.close()

    def close(self) -> None:
        self.server.close()
        for guest in self.guests:
            guest.close()


@pytest.fixture(params=[True, False], ids=["hangs up", "says nothing"])
def listener(request: pytest.FixtureRequest, queue_folder: Path) -> Iterator[Listener]:
    found = Listener(embedded_redis.socket_path(queue_folder), hangs_up=request.param)
    yield found
    found.close()


def test_one_try_and_no_more_while_somebody_waits(listener: Listener) -> None:
    job = services.start("tests.nothing", {}, None, label="Measure the links")
    job.refresh_from_db()
    assert len(listener.guests) == 1
    assert (job.state, job.sent_at) == ("pending", None)


def test_the_reaper_sends_what_a_stopped_queue_did_not_take(queue_folder: Path) -> None:
    valkey = subprocess.Popen(embedded_redis.command(queue_folder))
    valkey.kill()
    valkey.wait()
    job = services.start("tests.nothing", {}, None, label="Measure the links")
    Job.objects.filter(pk=job.pk).update(created_at=timezone.now() - timedelta(minutes=1))
    services.reap()
    job.refresh_from_db()
    assert job.sent_at is None
    valkey = subprocess.Popen(embedded_redis.command(queue_folder))
    try:
        wait_until(lambda: valkey_answers(embedded_redis.url(queue_folder)), "Valkey is back")
        services.reap()
    finally:
        valkey.kill()
        valkey.wait()
    job.refresh_from_db()
    assert job.sent_at is not None

"""Rows 3, 4, 7, 8, 11 and 12: jobs that kill their worker, come twice, or meet a queue that stalls or is full."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
from asgiref.sync import sync_to_async
from django.conf import LazySettings
from django.utils import timezone

from accounts.models import User
from e2llm_web import embedded_redis
from jobs import runner, services
from jobs.models import Job, State
from jobs.progress import Progress
from tests.conftest import valkey_answers, wait_until
from tests.reliability.poison import KILLS_ITS_WORKER, RUNS_LONG
from tests.websocket import Socket

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def poisoned_worker(site_environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A real Celery worker that knows the work of tests/reliability/poison.py."""
    argv = [*(sys.executable, "-m", "celery", "-A", "e2llm_web"), "worker", "-c", "2", "--loglevel", "ERROR"]
    command = [*argv, "--include", "tests.reliability.poison"]
    process = subprocess.Popen(command, env=site_environment, start_new_session=True)
    yield process
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def attempts(job: Job) -> int:
    return Job.objects.values_list("attempts", flat=True).get(pk=job.pk)


def has_tried(job: Job, tries: int) -> bool:
    return attempts(job) == tries


def state(job: Job) -> str:
    return Job.objects.values_list("state", flat=True).get(pk=job.pk)


def test_job_that_kills_its_worker_ends_after_three_tries_and_others_go_on(
    poisoned_worker: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    (tmp_path / "end").touch()
    poison = services.start(KILLS_ITS_WORKER, {}, None, label="Poison")
    for tries in (1, 2, 3):
        wait_until(partial(has_tried, poison, tries), f"try {tries}", seconds=60)
        Job.objects.filter(pk=poison.pk).update(heartbeat_at=timezone.now() - timedelta(minutes=1))
        services.reap()
    poison.refresh_from_db()
    assert poison.state == State.INTERRUPTED
    assert "lost 3 times" in poison.error
    good = services.start(RUNS_LONG, {"folder": str(tmp_path)}, None, label="Good")
    wait_until(lambda: state(good) == State.SUCCEEDED, "the good job has run", seconds=60)


def test_job_that_the_queue_delivers_again_while_it_runs_is_done_once(
    poisoned_worker: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    job = services.start(RUNS_LONG, {"folder": str(tmp_path)}, None, label="Long")
    wait_until(lambda: list(tmp_path.glob("run-*")), "it runs", seconds=60)
    for _ in range(3):
        services.send(job)
    other = services.start(RUNS_LONG, {"folder": str(tmp_path / "other")}, None, label="Behind the repeats")
    wait_until(lambda: attempts(other) == 1, "the repeats were delivered", seconds=60)
    (tmp_path / "end").touch()
    wait_until(lambda: state(job) == State.SUCCEEDED, "it has ended", seconds=60)
    assert len(list(tmp_path.glob("run-*"))) == 1
    assert attempts(job) == 1


async def test_page_that_lost_its_socket_gets_every_line_once(valkey_url: str, operator: User) -> None:
    job = await sync_to_async(Job.objects.create)(kind="tests.nothing", label="Long", state=State.RUNNING)
    progress = await sync_to_async(lambda: Progress(job))()
    progress.open()
    first = Socket(f"/ws/jobs/{job.pk}/", operator)
    assert await first.open()
    await first.receive()
    progress.log("one")
    await first.close()
    progress.log("two, while nobody listens")
    second = Socket(f"/ws/jobs/{job.pk}/", operator)
    assert await second.open()
    lines = [line["text"] for line in (await second.receive())["lines"]]
    progress.log("three")
    progress.log("four")
    while "four" not in lines:
        message = await second.receive()
        lines += [message["text"]] if message["type"] == "line" else []
    assert lines == ["one", "two, while nobody listens", "three", "four"]
    await second.close()
    await asyncio.to_thread(progress.close, State.SUCCEEDED)


async def test_slow_page_ends_with_the_newest_state(valkey_url: str, operator: User) -> None:
    job = await sync_to_async(Job.objects.create)(kind="tests.nothing", label="Long", state=State.RUNNING)
    progress = await sync_to_async(lambda: Progress(job))()
    progress.open()
    page = Socket(f"/ws/jobs/{job.pk}/", operator)
    assert await page.open()
    await page.receive()
    for number in range(500):
        progress.report(f"step {number}", number / 500)
        progress.log(f"line {number}")
    await asyncio.to_thread(progress.close, State.SUCCEEDED)
    seen = [await page.receive()]
    while not (seen[-1]["type"] == "job" and seen[-1]["job"]["state"] == State.SUCCEEDED):
        seen.append(await page.receive())
    assert [item["seq"] for item in seen] == sorted({item["seq"] for item in seen})
    assert seen[-1]["job"]["fraction"] == 1.0
    await page.close()


@pytest.fixture
def own_valkey(tmp_path: Path, settings: LazySettings) -> Iterator[subprocess.Popen[bytes]]:
    """A Valkey that only this test uses, for queue and live updates."""
    url = embedded_redis.url(tmp_path)
    settings.CELERY_BROKER_URL = embedded_redis.celery_url(url)
    settings.REDIS_URL = url
    layer: dict[str, Any] = {**settings.CHANNEL_LAYERS["default"], "CONFIG": {"hosts": [url]}}
    settings.CHANNEL_LAYERS = {"default": layer}
    process = subprocess.Popen(embedded_redis.command(tmp_path))
    wait_until(lambda: valkey_answers(url), "Valkey answers")
    yield process
    process.send_signal(signal.SIGCONT)
    process.kill()
    process.wait()


def test_stalled_redis_holds_up_neither_a_form_nor_a_heartbeat(own_valkey: subprocess.Popen[bytes]) -> None:
    own_valkey.send_signal(signal.SIGSTOP)
    waiting = services.start("tests.nothing", {}, None, label="Started meanwhile")
    services.cancel(waiting)
    job = Job.objects.create(kind="tests.nothing", label="Runs meanwhile")

    def work(progress: Progress) -> None:
        progress.log("first")
        before = Job.objects.get(pk=job.pk).heartbeat_at
        later = Job.objects.filter(pk=job.pk, heartbeat_at__gt=before)
        wait_until(later.exists, "a heartbeat", seconds=12)

    runner.execute(job.pk, work)
    assert (state(waiting), state(job)) == (State.CANCELLED, State.SUCCEEDED)


def test_queue_that_is_full_keeps_the_job_and_gets_it_when_there_is_room(
    own_valkey: subprocess.Popen[bytes], settings: LazySettings
) -> None:
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        client.config_set("maxmemory", 1)
        job = services.start("tests.nothing", {}, None, label="Too much")
        job.refresh_from_db()
        assert (job.state, job.sent_at) == (State.PENDING, None)
        client.config_set("maxmemory", 0)
        Job.objects.filter(pk=job.pk).update(created_at=timezone.now() - timedelta(minutes=1))
        services.reap()
    job.refresh_from_db()
    assert job.sent_at is not None

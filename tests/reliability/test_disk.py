"""Row 15: a full disk under the data folder is said on every page, refuses changes, and damages nothing."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import httpx
import pytest

from tests.conftest import require, wait_until
from tests.running_site import ROOT, free_port

LOGIN = """
from accounts.models import User
from inventory.models import Device
from tests.websocket import session_cookie
Device.objects.create(name="box", connection="local")
print(session_cookie(User.objects.create(username="ada", role="admin")))
"""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "data"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)]
    mounted = subprocess.run(mount, capture_output=True).returncode == 0
    require("a disk of 24 MB", mounted, "run as root")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def visitor(small_disk: Path) -> Iterator[httpx.Client]:
    """A logged-in browser in front of real pages whose data lie on the small disk."""
    inherited = {key: value for key, value in os.environ.items() if key != "DJANGO_SETTINGS_MODULE"}
    environment = inherited | {"E2LLM_DATA": str(small_disk)}
    manage = [sys.executable, "manage.py"]
    subprocess.run([*manage, "migrate", "--no-input"], cwd=ROOT, env=environment, check=True, stdout=-3)
    shell = [*manage, "shell", "--verbosity", "0", "--command", LOGIN]
    cookie = subprocess.run(shell, cwd=ROOT, env=environment, check=True, capture_output=True, text=True)
    port = free_port()
    server = [sys.executable, "-m", "uvicorn", "e2llm_web.asgi:application", "--port", str(port)]
    process = subprocess.Popen([*server, "--log-level", "critical"], cwd=ROOT, env=environment)
    name, _, value = cookie.stdout.strip().partition("=")
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", cookies={name: value}, timeout=60) as client:
        wait_until(lambda: answers(client), "the pages answer", seconds=60)
        yield client
    process.kill()
    process.wait()


def answers(client: httpx.Client) -> bool:
    with suppress(httpx.TransportError):
        return client.get("/healthz").status_code == 200
    return False


def fill(folder: Path) -> Path:
    """Take every byte that is left."""
    path = folder / "filler"
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    return path


def post(client: httpx.Client, path: str) -> httpx.Response:
    return client.post(path, data={"wanted": "on"}, headers={"X-CSRFToken": client.cookies["csrftoken"]})


def test_full_disk_is_named_reading_goes_on_and_nothing_is_half_written(
    visitor: httpx.Client, small_disk: Path
) -> None:
    assert visitor.get("/devices/").status_code == 200
    another_part = sqlite3.connect(small_disk / "e2llm.sqlite3")
    another_part.execute("SELECT count(*) FROM jobs_job").fetchall()
    filler = fill(small_disk)
    page = visitor.get("/devices/")
    assert page.status_code == 200
    assert str(small_disk) in page.text and "0 MB left" in page.text
    refused = post(visitor, "/devices/1/maintenance/")
    assert refused.status_code == 503
    assert str(small_disk) in refused.text and "was not saved" in refused.text
    filler.unlink()
    another_part.close()
    assert post(visitor, "/devices/1/maintenance/").status_code == 302
    with closing(sqlite3.connect(small_disk / "e2llm.sqlite3")) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert database.execute("SELECT in_maintenance FROM inventory_device").fetchall() == [(1,)]

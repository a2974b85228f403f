"""The whole product in its own processes, as `manage.py up` starts it, for tests that look at it from outside."""

import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from e2llm_web import embedded_redis
from tests.conftest import valkey_answers, wait_until

ROOT = Path(__file__).resolve().parents[1]
START_SECONDS = 120.0
MARKS = {
    "redis": "valkey-server",
    "worker": "--quiet worker",
    "beat": "--quiet beat",
    "web": "e2llm_web.asgi",
    "gateway": "serving.gateway",
}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@dataclass
class Site:
    """One `manage.py up` on its own data folder and ports."""

    data: Path
    port: int
    gateway_port: int
    options: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        inherited = {key: value for key, value in os.environ.items() if key != "DJANGO_SETTINGS_MODULE"}
        return inherited | {"E2LLM_DATA": str(self.data)}

    @property
    def output(self) -> str:
        return (self.data / "output").read_text() if (self.data / "output").exists() else ""

    @property
    def argv(self) -> list[str]:
        ports = ["--port", str(self.port), "--gateway-port", str(self.gateway_port)]
        return [sys.executable, "manage.py", "up", *ports, *self.options]

    def start(self) -> None:
        self.data.mkdir(parents=True, exist_ok=True)
        with (self.data / "output").open("wb") as output:
            self.process = subprocess.Popen(
                self.argv, cwd=ROOT, env=self.environment, stdout=output, stderr=subprocess.STDOUT
            )
        wait_until(self.has_started_or_ended, "the site is up", seconds=START_SECONDS)
        assert self.process.poll() is None, self.output

    def has_started_or_ended(self) -> bool:
        assert self.process is not None
        return "running; Ctrl-C stops" in self.output or self.process.poll() is not None

    @property
    def login_link(self) -> str:
        found = re.search(r"log in once with\s+(http://\S+)", self.output)
        assert found is not None, self.output
        return found[1]

    def try_start(self, changes: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Start where that is expected to fail; `changes` are of the environment."""
        environment = {**self.environment, **(changes or {})}
        return subprocess.run(
            self.argv, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=START_SECONDS
        )

    def interrupt(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(60)

    def processes(self) -> dict[int, str]:
        """Pid -> command line of everything that was started for this data folder."""
        mark = f"E2LLM_DATA={self.data}".encode()
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
        return {pid: words for pid, words in found.items() if words}

    def pid_of(self, part: str) -> int | None:
        """The leader of the part's session."""
        for pid, words in self.processes().items():
            if MARKS[part] in words and os.getsid(pid) == pid:
                return pid
        return None

    def answers(self, part: str) -> bool:
        """Beat is asked nothing by anybody: it is there, or it is not."""
        if part == "redis":
            return valkey_answers(embedded_redis.url(self.data))
        if part == "web":
            return self.status(f"http://127.0.0.1:{self.port}/healthz") == 200
        if part == "gateway":
            return self.status(f"http://127.0.0.1:{self.gateway_port}/v1/models") in {200, 401, 503}
        if part == "beat":
            return self.pid_of(part) is not None
        argv = [sys.executable, "-m", "celery", "--app", "e2llm_web", "inspect", "ping", "--timeout", "2"]
        return subprocess.run(argv, cwd=ROOT, env=self.environment, capture_output=True).returncode == 0

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """What the site's database holds, read beside it."""
        database = sqlite3.connect(f"file:{self.data}/e2llm.sqlite3?mode=ro", uri=True, timeout=20)
        try:
            return database.execute(query, values).fetchall()
        finally:
            database.close()

    @staticmethod
    def status(url: str) -> int:
        try:
            return httpx.get(url, timeout=30).status_code
        except httpx.HTTPError:
            return 0

"""The whole product under its supervisor, in its own processes."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from e2llm_web import embedded_redis
from tests.conftest import valkey_answers, wait_until

pytestmark = pytest.mark.whole
ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 120.0
MARKS = {
    "redis": "valkey-server",
    "worker": "celery",
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
        return [sys.executable, "manage.py", "up", *ports]

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

    def try_start(self) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.argv, cwd=ROOT, env=self.environment, capture_output=True, text=True, timeout=START_SECONDS
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
        if part == "redis":
            return valkey_answers(embedded_redis.url(self.data))
        if part == "web":
            return self.status(f"http://127.0.0.1:{self.port}/healthz") == 200
        if part == "gateway":
            return self.status(f"http://127.0.0.1:{self.gateway_port}/v1/models") in {200, 401, 503}
        argv = [sys.executable, "-m", "celery", "--app", "e2llm_web", "inspect", "ping", "--timeout", "2"]
        return subprocess.run(argv, cwd=ROOT, env=self.environment, capture_output=True).returncode == 0

    @staticmethod
    def status(url: str) -> int:
        try:
            return httpx.get(url, timeout=5).status_code
        except httpx.HTTPError:
            return 0


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    one = Site(tmp_path_factory.mktemp("site"), free_port(), free_port())
    one.start()
    yield one
    assert one.process is not None
    if one.process.poll() is None:
        one.interrupt()


@pytest.fixture
def stopped_site(tmp_path: Path) -> Site:
    return Site(tmp_path, free_port(), free_port())


@pytest.mark.parametrize("part", ["redis", "worker", "web", "gateway"])
def test_every_part_answers(site: Site, part: str) -> None:
    assert wait_until(lambda: site.answers(part), f"{part} answers", seconds=60)


def test_first_start_prints_a_link_that_opens(site: Site) -> None:
    link = re.search(r"log in once with\s+(http://\S+)", site.output)
    assert link is not None
    assert httpx.get(link[1], follow_redirects=True).status_code == 200


def test_pages_ask_for_a_login_and_forbid_inline_scripts(site: Site) -> None:
    answer = httpx.get(f"http://127.0.0.1:{site.port}/")
    assert (answer.status_code, answer.headers["location"]) == (302, "/login/?next=/")
    assert "script-src 'self'" in answer.headers["content-security-policy"]


def test_style_sheet_is_served_compressed_and_without_a_login(site: Site) -> None:
    answer = httpx.get(f"http://127.0.0.1:{site.port}/static/css/e2llm.css")
    assert (answer.status_code, answer.headers["content-type"].split(";")[0]) == (200, "text/css")
    assert answer.headers["content-encoding"] == "gzip"


def test_second_instance_on_the_same_data_is_refused(site: Site) -> None:
    second = Site(site.data, free_port(), free_port()).try_start()
    assert second.returncode == 1
    assert site.process is not None
    assert f"already runs on this data folder ({site.data}): pid {site.process.pid}" in second.stderr


def test_taken_port_is_named_with_its_holder(stopped_site: Site) -> None:
    with socket.create_server(("127.0.0.1", stopped_site.gateway_port)):
        refused = stopped_site.try_start()
    assert refused.returncode == 1
    assert f"Port {stopped_site.gateway_port} on 127.0.0.1 is taken by pid {os.getpid()}" in refused.stderr
    assert "--gateway-port" in refused.stderr
    assert stopped_site.processes() == {}


@pytest.mark.parametrize("part", ["worker", "web", "gateway", "redis"])
def test_killed_part_comes_back_and_the_others_find_it(site: Site, part: str) -> None:
    old = site.pid_of(part)
    assert old is not None
    os.kill(old, signal.SIGKILL)
    wait_until(lambda: site.pid_of(part) not in {None, old}, f"{part} is started again")
    for each in MARKS:
        assert wait_until(lambda each=each: site.answers(each), f"{each} answers again", seconds=60)  # type: ignore[misc]


def test_interrupt_stops_everything_and_a_second_start_continues(site: Site) -> None:
    assert site.interrupt() == 0, site.output
    assert site.processes() == {}
    site.start()
    assert site.answers("web")


def test_killed_supervisor_leaves_nothing_and_can_start_again(stopped_site: Site) -> None:
    stopped_site.start()
    assert stopped_site.process is not None
    stopped_site.process.kill()
    stopped_site.process.wait()
    wait_until(lambda: not stopped_site.processes(), "everything ends with its supervisor", seconds=60)
    stopped_site.start()
    assert stopped_site.interrupt() == 0, stopped_site.output


def test_absent_redis_is_named(stopped_site: Site) -> None:
    environment = stopped_site.environment | {"REDIS_URL": f"redis://127.0.0.1:{free_port()}/0"}
    refused = subprocess.run(stopped_site.argv, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert refused.returncode == 1
    assert "The Redis that REDIS_URL names does not answer" in refused.stderr


def test_absent_database_is_named(stopped_site: Site) -> None:
    absent = f"postgresql://e2llm:secret@127.0.0.1:{free_port()}/e2llm"
    environment = stopped_site.environment | {"DATABASE_URL": absent}
    refused = subprocess.run(stopped_site.argv, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert refused.returncode == 1
    assert "The database does not answer" in refused.stderr
    assert "secret" not in refused.stderr
    assert stopped_site.processes() == {}

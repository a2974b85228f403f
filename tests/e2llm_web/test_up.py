"""The whole product under its supervisor, in its own processes."""

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.conftest import wait_until
from tests.running_site import MARKS, ROOT, Site, free_port

pytestmark = pytest.mark.whole


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


@pytest.mark.parametrize("part", ["redis", "worker", "beat", "web", "gateway"])
def test_every_part_answers(site: Site, part: str) -> None:
    assert wait_until(lambda: site.answers(part), f"{part} answers", seconds=120)


def test_first_start_prints_a_link_that_opens(site: Site) -> None:
    assert httpx.get(site.login_link, follow_redirects=True).status_code == 200


def test_pages_ask_for_a_login_and_forbid_inline_scripts(site: Site) -> None:
    answer = httpx.get(f"http://127.0.0.1:{site.port}/", timeout=30)
    assert (answer.status_code, answer.headers["location"]) == (302, "/login/?next=/")
    assert "script-src 'self'" in answer.headers["content-security-policy"]


def test_style_sheet_is_served_compressed_and_without_a_login(site: Site) -> None:
    answer = httpx.get(f"http://127.0.0.1:{site.port}/static/css/e2llm.css", timeout=30)
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


@pytest.mark.parametrize("part", ["worker", "beat", "web", "gateway", "redis"])
def test_killed_part_comes_back_and_the_others_find_it(site: Site, part: str) -> None:
    old = site.pid_of(part)
    assert old is not None
    os.kill(old, signal.SIGKILL)
    wait_until(lambda: site.pid_of(part) not in {None, old}, f"{part} is started again")
    for each in MARKS:
        assert wait_until(lambda each=each: site.answers(each), f"{each} answers again", seconds=120)  # type: ignore[misc]


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
    wait_until(lambda: not stopped_site.processes(), "everything ends with its supervisor", seconds=120)
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

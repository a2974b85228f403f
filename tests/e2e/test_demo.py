"""`up --demo` as a newcomer starts it, stops it and starts it again."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from demo import hosts
from demo.hosts import DemoHost
from tests.conftest import wait_until
from tests.e2e import traces
from tests.running_site import Site, free_port

pytestmark = pytest.mark.whole
LAST_LINE = "| playground answers\n"


@pytest.fixture(scope="module")
def demo_site(
    tmp_path_factory: pytest.TempPathFactory, small_model: Path, llama_server: Path, ggml_rpc_server: Path
) -> Iterator[Site]:
    one = Site(tmp_path_factory.mktemp("demo"), free_port(), free_port(), ("--demo",))
    one.start()
    try:
        wait_until(lambda: has_ended(one), "the demo has asked its first question", seconds=300)
        yield one
    finally:
        if one.process is not None and one.process.poll() is None:
            one.interrupt()
        one.end_processes(traces.processes(lab_of(one)))


def lab_of(site: Site) -> list[DemoHost]:
    return hosts.hosts(site.data / "demo")


def has_ended(site: Site) -> bool:
    assert site.process is not None
    return LAST_LINE in site.output or "could not go on" in site.output or site.process.poll() is not None


def test_one_command_reaches_an_answer(demo_site: Site) -> None:
    assert LAST_LINE in demo_site.output, demo_site.output
    assert "hand-over: hit" in demo_site.output


def test_a_second_start_adopts_what_runs_and_answers_again(demo_site: Site) -> None:
    running = traces.processes(lab_of(demo_site))
    assert len(running) == 3
    assert demo_site.interrupt() == 0
    assert traces.processes(lab_of(demo_site)) == running
    demo_site.start()
    wait_until(lambda: has_ended(demo_site), "the demo answers again", seconds=120)
    assert LAST_LINE in demo_site.output, demo_site.output
    assert traces.processes(lab_of(demo_site)) == running
    assert demo_site.rows("SELECT count(*) FROM inventory_device") == [(3,)]
    assert demo_site.rows("SELECT count(*) FROM serving_deployment") == [(1,)]

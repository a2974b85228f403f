"""A running site with the demo's three hosts, waiting for a person."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo import hosts
from demo.hosts import DemoHost
from tests.conftest import wait_until
from tests.e2e import traces
from tests.e2e.visitor import Visitor
from tests.running_site import Site, free_port

DEMO_END = re.compile(r"\| (playground answers|the demo could not go on.*)\n")


@pytest.fixture(scope="module")
def site(
    tmp_path_factory: pytest.TempPathFactory, small_model: Path, llama_server: Path, ggml_rpc_server: Path
) -> Iterator[Site]:
    """`up --demo=manual` on free ports and a folder of its own; what is left on the hosts is ended afterwards."""
    one = Site(tmp_path_factory.mktemp("site"), free_port(), free_port(), ("--demo=manual",))
    one.start()
    try:
        wait_until(lambda: "the hosts are ready" in one.output, "the demo's hosts are ready", seconds=60)
        yield one
    finally:
        one.interrupt()
        traces.end(hosts.hosts(one.data / "demo"))


@pytest.fixture(scope="session")
def demo_site(
    tmp_path_factory: pytest.TempPathFactory, small_model: Path, llama_server: Path, ggml_rpc_server: Path
) -> Iterator[Site]:
    """`up --demo` that has come to its end, well or not."""
    one = Site(tmp_path_factory.mktemp("demo"), free_port(), free_port(), ("--demo",))
    one.start()
    try:
        wait_until(lambda: demo_has_ended(one), "the demo has asked its first question", seconds=300)
        yield one
    finally:
        if one.process is not None and one.process.poll() is None:
            one.interrupt()
        traces.end(hosts.hosts(one.data / "demo"))


@pytest.fixture(scope="session")
def demo_visitor(demo_site: Site) -> Visitor:
    return Visitor(demo_site)


@pytest.fixture(scope="session")
def demo_lab(demo_site: Site) -> list[DemoHost]:
    return hosts.hosts(demo_site.data / "demo")


def demo_has_ended(site: Site) -> bool:
    assert site.process is not None
    return bool(DEMO_END.search(site.output)) or site.process.poll() is not None


@pytest.fixture(scope="module")
def lab(site: Site) -> list[DemoHost]:
    return hosts.hosts(site.data / "demo")


@pytest.fixture(scope="module")
def visitor(site: Site) -> Visitor:
    return Visitor(site)

"""Devices to ask: the demo's SSH hosts with real llama.cpp, and a job to report to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from demo import hosts
from demo.hosts import DemoHost
from inventory import services
from inventory.models import Device
from inventory.services import NewDevice
from jobs.models import Job, State
from jobs.progress import Progress
from tests.lab import threaded_hosts

MakeProgress = Callable[[], Progress]


@pytest.fixture
def lab(tmp_path: Path, llama_server: Path, ggml_rpc_server: Path) -> Iterator[list[DemoHost]]:
    """Three hosts; llama.cpp is on the path of each."""
    found = hosts.hosts(tmp_path)
    for program in (llama_server, ggml_rpc_server):
        found[0].programs.mkdir(parents=True, exist_ok=True)
        (found[0].programs / program.name).symlink_to(program)
    with threaded_hosts.serving(found):
        yield found


def register(host: DemoHost, name: str = "") -> Device:
    key = services.look_up(host.address, host.port)
    new = NewDevice(name or host.name, host.address, host.port, host.username)
    return services.register_device(new, key.line, None, password=host.password)


@pytest.fixture
def make_progress(transactional_db: None) -> Iterator[MakeProgress]:
    """Progress of a job that nobody else runs."""
    opened: list[Progress] = []

    def make() -> Progress:
        progress = Progress(Job.objects.create(kind="test", label="test", state=State.RUNNING, lease="test"))
        progress.open()
        opened.append(progress)
        return progress

    yield make
    for progress in opened:
        progress.close(None)

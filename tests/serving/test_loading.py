"""How far a load is: by what can be seen of it, and never by a guess."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from inventory.models import SshIdentity
from inventory.remote import connect
from serving.core.loading import STILL_MOVING_SECONDS, Holding, Loading
from serving.processes import observe
from serving.processes.observe import OnGpu
from serving.runner.fleet import Fleet, Loaded
from serving.runner.readiness import report_all
from tests.lab.sshd_host import MakeHost
from tests.reliability.conftest import device_on

GB = 10**9
NVIDIA_SMI = """#!/bin/sh
case "$*" in *--query-compute-apps=pid,used_memory*) ;; *) exit 1;; esac
echo '41, 512'; echo '42, 1000'; echo '42, 24'; echo '43, [N/A]'
"""


def loading(total_bytes: int = 10 * GB) -> Loading:
    return Loading(total_bytes, deadline_seconds=100.0, began=0.0, moved_at=0.0)


def test_memory_of_a_gpu_counts_where_the_host_tells() -> None:
    load = loading()
    load.see([Holding(3 * GB, 2 * GB, 8 * GB, video_bytes=4 * GB)], 10.0)
    assert load.held_bytes == 6 * GB, "what a llama-server maps beyond its own part does not count"
    assert load.remaining_seconds(10.0) == pytest.approx(10 * 4 / 6)


def test_bytes_that_came_over_rpc_count_where_the_gpu_is_silent() -> None:
    load = loading()
    load.see([Holding(GB // 10, 0, 10 * GB, received_bytes=5 * GB)], 10.0)
    assert load.is_seen
    assert load.fraction() == 0.5


def test_gpu_that_cannot_be_seen_foretells_nothing_and_gets_more_patience() -> None:
    load = loading()
    load.see([Holding(GB, 0, 9 * GB), Holding(GB, GB)], 1.0)
    assert not load.is_seen
    assert load.remaining_seconds(50.0) is None
    assert not load.is_over(100.0 + STILL_MOVING_SECONDS + 2)
    assert load.is_over(3 * 100.0 + 1)


def test_load_that_moves_is_never_over() -> None:
    load = loading()
    for second in range(0, 1000, 50):
        load.see([Holding(second * 1000, 10 * GB)], float(second))
    assert not load.is_over(1000.0)
    assert load.is_over(1000.0 + STILL_MOVING_SECONDS)


def test_progress_never_goes_back() -> None:
    load = loading()
    load.see([Holding(5 * GB, 10 * GB)], 1.0)
    load.see([Holding(GB, 10 * GB)], 2.0)
    assert load.fraction() == 0.5


class Told:
    def __init__(self) -> None:
        self.reports: list[tuple[Any, ...]] = []

    def report(self, *said: Any) -> None:
        self.reports.append(said)


def test_bar_of_several_replicas_is_open_while_one_of_them_cannot_be_seen() -> None:
    told: Any = Told()
    fleet = Fleet(told)
    fleet.loaded[1] = Loaded(GB, 2 * GB, 5.0, is_seen=True)
    report_all(fleet)
    fleet.loaded[2] = Loaded(0, 2 * GB, None, is_seen=False)
    report_all(fleet)
    assert told.reports == [
        ("Loading the model", 0.5, 5.0),
        ("Loading the model; how far it is cannot be seen",),
    ]


@pytest.mark.django_db(transaction=True)
def test_host_tells_what_a_process_holds_of_its_nvidia_card(
    make_host: MakeHost, identity: SshIdentity, tmp_path: Path
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "nvidia-smi").write_text(NVIDIA_SMI)
    (programs / "nvidia-smi").chmod(0o755)
    with_card = device_on(make_host(path=f"{programs}:/usr/sbin:/usr/bin:/bin"), identity)
    without = device_on(make_host(path="/usr/sbin:/usr/bin:/bin"), identity)

    async def work() -> list[OnGpu]:
        async with connect(with_card) as card, connect(without) as none:
            pids = (42, 43, 44)
            return [await observe.on_gpu(card, pid, None) for pid in pids] + [
                await observe.on_gpu(none, 42, None)
            ]

    silent = OnGpu(None, None)
    assert asyncio.run(work()) == [OnGpu(1024 * 2**20, None), silent, silent, silent]


@pytest.mark.django_db(transaction=True)
def test_host_tells_what_came_in_over_rpc(make_host: MakeHost, identity: SshIdentity) -> None:
    device = device_on(make_host(path="/usr/sbin:/usr/bin:/bin"), identity)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        async def work() -> OnGpu:
            async with connect(device) as connection:
                return await observe.on_gpu(connection, 1, port)

        assert asyncio.run(work()) == OnGpu(None, None)
        with socket.create_connection(("127.0.0.1", port)) as client:
            worker, _ = server.accept()
            with worker:
                client.sendall(bytes(100_000))
                received = 0
                while received < 100_000:
                    received += len(worker.recv(65536))
                assert asyncio.run(work()) == OnGpu(None, 100_000)

"""Folders that a start which was cut off left on a real host go; all others stay."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.utils import timezone

from inventory.models import Device, SshIdentity
from inventory.remote import connect
from serving.models import Deployment, ManagedProcess
from serving.processes import programs, whose
from serving.processes.observe import run_program
from serving.runner import sweep
from tests.lab.sshd_host import MakeHost, SshdHost
from tests.reliability.conftest import device_on
from tests.serving.test_pages import deployment

__all__ = ["deployment"]

pytestmark = pytest.mark.django_db(transaction=True)
HOUR, DAYS = 3600.0, 3 * 86400.0
SHARED = Path("/dev/shm")


@pytest.fixture
def host(make_host: MakeHost) -> SshdHost:
    return make_host()


@pytest.fixture
def device(host: SshdHost, identity: SshIdentity) -> Device:
    found = device_on(host, identity)
    found.state, found.probed_at = Device.States.ONLINE, timezone.now()
    found.save()
    return found


@pytest.fixture
def shared() -> Iterator[list[Path]]:
    """Folders in the host's memory, which is this machine's."""
    made: list[Path] = []
    yield made
    for folder in made:
        shutil.rmtree(folder, ignore_errors=True)


def new_marker() -> str:
    return f"e2llm-{secrets.token_hex(6)}"


def prepared(host: SshdHost, device: Device, shared: list[Path], marker: str) -> list[Path]:
    """What the first half of a start makes: the folder of the run and that of the slots."""
    run, slots = host.home / ".cache/e2llm" / marker, SHARED / marker
    shared.append(slots)

    async def work() -> None:
        async with connect(device) as connection:
            args = [str(run), str(slots), whose.installation_id()]
            assert "ok" in await run_program(connection, programs.PREPARE, args)

    asyncio.run(work())
    return [run, slots]


def age(seconds: float, *folders: Path) -> None:
    then = time.time() - seconds
    for folder in folders:
        for path in [*folder.rglob("*"), folder]:
            os.utime(path, (then, then))


def test_start_cut_off_before_its_process_leaves_nothing(
    host: SshdHost, device: Device, shared: list[Path]
) -> None:
    cut_off = prepared(host, device, shared, new_marker())
    age(HOUR, *cut_off)
    just_now = prepared(host, device, shared, new_marker())
    sweep.sweep()
    assert [folder.exists() for folder in (*cut_off, *just_now)] == [False, False, True, True]


def test_folder_with_files_is_kept_for_a_day(host: SshdHost, device: Device, shared: list[Path]) -> None:
    young, old, half = (prepared(host, device, shared, new_marker()) for _ in range(3))
    for run, _ in (young, old):
        (run / "log").write_text("why it ended")
    (half[1] / "1.kv").write_text("a slot")
    age(HOUR, *young, *half)
    age(DAYS, *old)
    sweep.sweep()
    assert young[0].exists()
    assert not old[0].exists()
    assert all(folder.exists() for folder in half), "its note goes with the last of its folders"


def test_folders_of_others_of_rows_and_of_processes_stay(
    host: SshdHost, device: Device, shared: list[Path], deployment: Deployment
) -> None:
    foreign, wanted, running = (prepared(host, device, shared, new_marker()) for _ in range(3))
    (foreign[0] / "installation").write_text("feedfeedfeed\n")
    unnamed = SHARED / new_marker()
    unnamed.mkdir()
    shared.append(unnamed)
    strange = host.home / ".cache/e2llm/e2llm-notes"
    strange.mkdir()
    replica = deployment.replicas.all()[0]
    ManagedProcess.objects.create(replica=replica, device=device, kind="master", marker=wanted[0].name)
    process = subprocess.Popen(["sleep", "600"], env=os.environ | {"E2LLM_MARKER": running[0].name})
    try:
        age(DAYS, *foreign, *wanted, *running, unnamed, strange)
        sweep.sweep()
        kept = [*foreign, *wanted, *running, unnamed, strange]
        assert [folder for folder in kept if not folder.exists()] == []
    finally:
        process.kill()
        process.wait()


def test_folder_without_a_note_is_ours_when_a_row_ever_had_its_mark(
    host: SshdHost, device: Device, shared: list[Path], deployment: Deployment
) -> None:
    folder = SHARED / new_marker()
    folder.mkdir()
    shared.append(folder)
    age(HOUR, folder)
    replica = deployment.replicas.all()[0]
    ManagedProcess.objects.create(replica=replica, kind="master", marker=folder.name, state="stopped")
    sweep.sweep()
    assert not folder.exists()

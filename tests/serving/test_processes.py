"""Processes of ours on a host, with the host's real shell."""

from __future__ import annotations

import asyncio
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from inventory.models import Device
from inventory.remote import Connection, connect
from serving.core.commands import ProcessCommand
from serving.processes import lifecycle, observe
from serving.processes.lifecycle import Started, StartRefused

LISTENER = (
    "import signal, socket, sys, time\n"
    "for name in sys.argv[3:]: signal.signal(getattr(signal, name), signal.SIG_IGN)\n"
    "server = socket.create_server((sys.argv[1], int(sys.argv[2])))\n"
    "print('listening', flush=True)\n"
    "time.sleep(600)\n"
)


def this_machine() -> Device:
    return Device(name="here", connection=Device.Connections.LOCAL)


def command(folder: Path, *argv: str, key: bool = False) -> ProcessCommand:
    marker = f"e2llm-{secrets.token_hex(6)}"
    run_folder = folder / "run" / marker
    return ProcessCommand(
        device="here",
        kind="master",
        address="127.0.0.1",
        port=0,
        marker=marker,
        argv=argv,
        environment={"E2LLM_MARKER": marker, "GGML_NO_BACKTRACE": "1"},
        run_folder=str(run_folder),
        slot_folder=str(folder / "slots" / marker),
        key_path=str(run_folder / "api-key") if key else None,
        log_path=str(run_folder / "log"),
    )


def listener(folder: Path, port: int, *ignored: str) -> ProcessCommand:
    return command(folder, sys.executable, "-c", LISTENER, "127.0.0.9", str(port), *ignored)


@asynccontextmanager
async def running(wanted: ProcessCommand) -> AsyncIterator[tuple[Connection, Started]]:
    async with connect(this_machine()) as connection:
        started = await lifecycle.start(connection, wanted, "secret")
        try:
            yield connection, started
        finally:
            await lifecycle.stop(connection, wanted.marker, wanted.run_folder, wanted.slot_folder, 5)


async def logged(connection: Connection, wanted: ProcessCommand, text: str) -> str:
    for _ in range(100):
        log = await observe.log_tail(connection, wanted.log_path)
        if text in log:
            return log
        await asyncio.sleep(0.1)
    raise AssertionError(f"{text!r} never came; the log is {log!r}")


@pytest.fixture
def stranger() -> Iterator[int]:
    """A process that somebody else started."""
    process = subprocess.Popen(["sleep", "600"])
    yield process.pid
    assert process.poll() is None, "a process without our marker was ended"
    process.terminate()
    process.wait()


async def test_started_process_is_found_again_by_marker_pid_and_start_time(tmp_path: Path) -> None:
    wanted = command(tmp_path, "sleep", "600")
    async with running(wanted) as (connection, started):
        seen = await observe.observe(connection)
        found = seen.find(wanted.marker, started.pid, started.start_ticks, started.boot_id)
        assert found is not None
        assert found.pid == started.pid
        assert "sleep 600" in found.command
        assert seen.find(wanted.marker, started.pid, "1", started.boot_id) is None
        assert seen.find(wanted.marker, started.pid, started.start_ticks, "another boot") is None


async def test_process_outlives_the_connection_that_started_it(tmp_path: Path) -> None:
    wanted = command(tmp_path, "sleep", "600")
    async with connect(this_machine()) as connection:
        started = await lifecycle.start(connection, wanted)
    async with connect(this_machine()) as connection:
        seen = await observe.observe(connection)
        assert seen.find(wanted.marker, started.pid, started.start_ticks, started.boot_id)
        assert await lifecycle.stop(connection, wanted.marker, wanted.run_folder, wanted.slot_folder)


async def test_second_start_with_the_same_marker_finds_the_first(tmp_path: Path) -> None:
    wanted = command(tmp_path, "sleep", "600")
    async with running(wanted) as (connection, first):
        assert await lifecycle.start(connection, wanted) == first


async def test_stop_leaves_neither_process_nor_folder_and_spares_strangers(
    tmp_path: Path, stranger: int
) -> None:
    wanted = command(tmp_path, "/bin/sh", "-c", "sleep 600 & sleep 600")
    async with running(wanted) as (connection, _):
        assert await lifecycle.stop(connection, wanted.marker, wanted.run_folder, wanted.slot_folder)
        seen = await observe.observe(connection)
    assert wanted.marker not in {process.marker for process in seen.processes}
    assert not Path(wanted.run_folder).exists()
    assert not Path(wanted.slot_folder).exists()


async def test_process_that_ignores_sigterm_is_killed(tmp_path: Path, unused_tcp_port: int) -> None:
    wanted = listener(tmp_path, unused_tcp_port, "SIGTERM")
    async with running(wanted) as (connection, _):
        await logged(connection, wanted, "listening")
        assert await lifecycle.stop(connection, wanted.marker, wanted.run_folder, wanted.slot_folder, 2)


async def test_stop_is_repeatable(tmp_path: Path) -> None:
    async with connect(this_machine()) as connection:
        assert not await lifecycle.stop(
            connection, "e2llm-000000000000", "/nowhere/e2llm-000000000000", "/nowhere/x"
        )


async def test_key_file_is_for_its_owner_alone_and_the_key_is_not_on_the_command_line(tmp_path: Path) -> None:
    wanted = command(tmp_path, "sleep", "600", key=True)
    async with running(wanted) as (connection, started):
        assert wanted.key_path is not None
        assert Path(wanted.key_path).stat().st_mode & 0o777 == 0o600
        assert Path(wanted.key_path).read_text() == "secret\n"
        assert b"secret" not in Path(f"/proc/{started.pid}/cmdline").read_bytes()


async def test_only_the_process_that_listens_owns_the_socket(tmp_path: Path, unused_tcp_port: int) -> None:
    wanted, other = listener(tmp_path, unused_tcp_port), command(tmp_path, "sleep", "600")
    async with running(wanted) as (connection, started), running(other) as (_, bystander):
        await logged(connection, wanted, "listening")
        ours = await lifecycle.socket_owner(connection, started.pid, "127.0.0.9", unused_tcp_port)
        theirs = await lifecycle.socket_owner(connection, bystander.pid, "127.0.0.9", unused_tcp_port)
        nobodys = await lifecycle.socket_owner(connection, started.pid, "127.0.0.8", unused_tcp_port)
    assert ours == ("ours", "")
    assert theirs[0] == "other"
    assert nobodys == ("none", "")


async def test_program_that_ends_at_once_is_reported_with_its_log(tmp_path: Path) -> None:
    wanted = command(tmp_path, "/bin/sh", "-c", "echo no such flag; exit 1")
    async with running(wanted) as (connection, started):
        assert "no such flag" in await logged(connection, wanted, "no such flag")
        seen = await observe.observe(connection)
        assert seen.find(wanted.marker, started.pid, started.start_ticks, started.boot_id) is None


async def test_hostile_arguments_stay_arguments(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    hostile = [
        f"$(touch {canary})",
        f"`touch {canary}`",
        f"; touch {canary}",
        "a'b\"c",
        "-rf",
        "line\nbreak",
        "*",
    ]
    wanted = command(tmp_path, sys.executable, "-c", "import sys; print(sys.argv[1:])", *hostile)
    async with running(wanted) as (connection, _):
        log = await logged(connection, wanted, "]")
    assert log.strip() == str(hostile)
    assert not canary.exists()


async def test_changed_model_file_is_refused_before_the_start(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF")
    async with connect(this_machine()) as connection:
        await lifecycle.preflight(connection, "here", "/bin/sh", str(model), 4)
        with pytest.raises(StartRefused, match="has 4 bytes, expected 5"):
            await lifecycle.preflight(connection, "here", "/bin/sh", str(model), 5)
        with pytest.raises(StartRefused, match="is not there any more"):
            await lifecycle.preflight(connection, "here", "/bin/sh", str(tmp_path / "gone"), 5)
        with pytest.raises(StartRefused, match="may not be executed"):
            await lifecycle.preflight(connection, "here", str(model), "", 0)


async def test_free_port_is_one_that_nothing_listens_on(tmp_path: Path, unused_tcp_port: int) -> None:
    wanted = listener(tmp_path, unused_tcp_port)
    async with running(wanted) as (connection, _):
        await logged(connection, wanted, "listening")
        state = await observe.host_state(connection)
    assert unused_tcp_port in state.listening_ports
    assert observe.free_port(state.listening_ports) not in state.listening_ports
    assert state.home == str(Path.home())

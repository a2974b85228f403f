"""Slot files between hosts, over a real sshd and a server that wants its key."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from asgiref.sync import sync_to_async

from inventory import remote
from inventory.models import Device, SshIdentity
from serving.core.handover import HandoverBroken
from serving.gateway.routes import Endpoint
from serving.gateway.transfer import Transfer
from serving.upstream import Target
from tests.lab.sshd_host import SshdHost

CONTENT = bytes(range(256)) * 4000
KEY = 'se"cr\\et'


@pytest.fixture
def host(sshd: Path, tmp_path: Path, identity: SshIdentity) -> Iterator[SshdHost]:
    one = SshdHost(sshd, tmp_path / "host", "127.0.0.81")
    one.start(identity.public_key)
    yield one
    one.destroy()


async def registered(host: SshdHost, identity: SshIdentity) -> int:
    key = await remote.fetch_host_key(host.address, host.port)
    device = await Device.objects.acreate(
        name="box",
        host=host.address,
        port=host.port,
        username=host.username,
        identity=identity,
        host_key=key.line,
    )
    return int(device.pk)


@asynccontextmanager
async def file_server() -> AsyncIterator[tuple[int, list[str]]]:
    """Serves one file to whoever sends the key, as a llama-server does, and notes who else runs meanwhile."""
    seen: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        listing = await asyncio.create_subprocess_exec(
            "ps", "axww", "-o", "args", stdout=asyncio.subprocess.PIPE
        )
        seen.append((await listing.communicate())[0].decode())
        allowed = f"Authorization: Bearer {KEY}" in head and head.startswith("GET /x.kv ")
        status, content = ("200 OK", CONTENT) if allowed else ("401 Unauthorized", b"{}")
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], seen
    finally:
        server.close()


def endpoint(number: int, device: int | None, folder: Path, port: int = 1, key: str = KEY) -> Endpoint:
    folder.mkdir(exist_ok=True)
    target = Target("127.0.0.1", port, key)
    return Endpoint(number, "decode", 1, "R", target, device, str(folder), True, 0)


@pytest.fixture
async def transfer() -> AsyncIterator[Transfer]:
    one = Transfer(move_seconds=20.0)
    yield one
    await one.close()


async def test_the_decode_host_fetches_the_file_itself_and_removes_it(
    host: SshdHost, identity: SshIdentity, transfer: Transfer, tmp_path: Path
) -> None:
    device = await registered(host, identity)
    decode = endpoint(2, device, tmp_path / "slots")
    async with file_server() as (port, seen):
        prefill = endpoint(1, None, tmp_path / "prefill", port)
        assert await transfer.pull(prefill, decode, "x.kv") == len(CONTENT)
    moved = Path(decode.slot_folder) / "x.kv"
    assert moved.read_bytes() == CONTENT
    assert any("curl" in listing for listing in seen), "curl was to be seen while it ran"
    assert not any("secr" in listing or 'se"cr' in listing for listing in seen)
    transfer.remove(decode, "x.kv")
    await transfer.close()
    assert not moved.exists()


async def test_a_refused_key_and_a_silent_port_are_named(
    host: SshdHost, identity: SshIdentity, transfer: Transfer, tmp_path: Path
) -> None:
    decode = endpoint(2, await registered(host, identity), tmp_path / "slots")
    async with file_server() as (port, _):
        with pytest.raises(HandoverBroken, match="401"):
            await transfer.pull(endpoint(1, None, tmp_path / "p", port, key="other"), decode, "x.kv")
    with pytest.raises(HandoverBroken, match="[Cc]onnect"):
        await transfer.pull(endpoint(1, None, tmp_path / "p", port), decode, "x.kv")
    assert list(Path(decode.slot_folder).iterdir()) == []


async def test_a_host_without_curl_is_served_through_the_gateway(
    sshd: Path, identity: SshIdentity, transfer: Transfer, tmp_path: Path
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("sh", "mkdir", "cat", "chmod", "mv", "rm"):
        (programs / name).symlink_to(shutil.which(name) or name)
    bare = SshdHost(sshd, tmp_path / "bare", "127.0.0.82", path=str(programs))
    await sync_to_async(bare.start)(identity.public_key)
    try:
        decode = endpoint(2, await registered(bare, identity), tmp_path / "slots")
        async with file_server() as (port, _):
            prefill = endpoint(1, None, tmp_path / "p", port)
            assert await transfer.pull(prefill, decode, "x.kv") == len(CONTENT)
        assert (Path(decode.slot_folder) / "x.kv").read_bytes() == CONTENT
        await transfer.close()
    finally:
        bare.destroy()


async def test_files_that_a_killed_gateway_left_are_swept(
    host: SshdHost, identity: SshIdentity, transfer: Transfer, tmp_path: Path
) -> None:
    decode = endpoint(2, await registered(host, identity), tmp_path / "slots")
    old, fresh, foreign = (Path(decode.slot_folder) / name for name in ("old.kv", "fresh.kv", "notes"))
    for file in (old, fresh, foreign):
        file.touch()
    for file in (old, foreign):
        os.utime(file, (1.0, 1.0))
    await transfer.sweep(decode)
    assert sorted(Path(decode.slot_folder).iterdir()) == [fresh, foreign]


async def test_a_broken_connection_is_opened_again(
    host: SshdHost, identity: SshIdentity, transfer: Transfer, tmp_path: Path
) -> None:
    decode = endpoint(2, await registered(host, identity), tmp_path / "slots")
    async with file_server() as (port, _):
        prefill = endpoint(1, None, tmp_path / "p", port)
        await transfer.pull(prefill, decode, "x.kv")
        kill_sessions(host)
        assert await transfer.pull(prefill, decode, "x.kv") == len(CONTENT)


def kill_sessions(host: SshdHost) -> None:
    assert host.process is not None
    pid = host.process.pid
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        os.kill(int(child), signal.SIGKILL)

"""Row 35 and a pulled cable: what profiling started on a host ends there, though sshd waits for hours."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from inventory import remote
from inventory.models import SshIdentity
from inventory.profiling import held as lease
from inventory.profiling.held import Bench, Launch, held, make_folder
from inventory.remote import ssh
from tests.conftest import wait_until
from tests.lab.network import Network
from tests.lab.sshd_host import MakeHost, SshdHost
from tests.reliability.conftest import device_on

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def short_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "BEAT_SECONDS", 0.2)
    monkeypatch.setattr(lease, "LEASE_SECONDS", 4.0)
    monkeypatch.setattr(ssh, "HOLD_END_SECONDS", 1.0)
    monkeypatch.setattr(ssh, "KEEPALIVE_SECONDS", 600)


def running(host: SshdHost) -> list[str]:
    """Command lines of what runs out of the folder of a profile on the host."""
    mark, found = f"{host.home}/.cache/e2llm".encode(), []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            line = path.read_bytes()
            found += [line.replace(b"\0", b" ").decode()] if mark in line else []
    return found


def folders(host: SshdHost) -> list[Path]:
    return list((host.home / ".cache" / "e2llm").glob("profile-*"))


async def start_forever(connection: remote.Connection, host: SshdHost, start: lease.Start) -> None:
    argv = ("tail", "-F", f"{host.home}/.cache/e2llm/nothing")
    await start([Launch("forever", Bench("gpu", ()), 2, 1, argv)])
    await asyncio.to_thread(wait_until, lambda: any("tail -F" in line for line in running(host)), "it runs")


def test_a_host_that_hears_nothing_ends_everything_by_itself(network: Network, identity: SshIdentity) -> None:
    host = network.add_host(identity.public_key)
    device = device_on(host, identity)

    async def work() -> None:
        async with remote.connect(device) as connection:
            folder = await make_folder(connection, str(host.home))
            async with held(connection, folder) as start:
                await connection.write_file(f"{folder}/2.gguf", bytes(1000))
                await start_forever(connection, host, start)
                network.silence(host)
                await asyncio.to_thread(
                    wait_until, lambda: not running(host) and not folders(host), "all of it is gone"
                )

    asyncio.run(work())


def test_what_is_heard_from_goes_on_beyond_its_lease(make_host: MakeHost, identity: SshIdentity) -> None:
    host = make_host()
    device = device_on(host, identity)

    async def work() -> None:
        async with remote.connect(device) as connection:
            folder = await make_folder(connection, str(host.home))
            async with held(connection, folder) as start:
                await start_forever(connection, host, start)
                beat = Path(folder) / "beat"
                beats = 2 * round(lease.LEASE_SECONDS / lease.BEAT_SECONDS)
                await asyncio.to_thread(wait_until, lambda: int(beat.read_text() or 0) > beats, "two leases")
                assert any("tail -F" in line for line in running(host))

    asyncio.run(work())
    wait_until(lambda: not running(host) and not folders(host), "the end of the connection ends it")


def test_a_short_lived_program_is_ended_by_the_host_at_its_time(
    network: Network, identity: SshIdentity
) -> None:
    host = network.add_host(identity.public_key)
    device = device_on(host, identity)
    mark = f"{host.home}/.cache/e2llm"

    async def work() -> None:
        async with (
            remote.connect(device) as connection,
            connection.hold_bounded(["tail", "-F", f"{mark}/nothing"], 4),
        ):
            await asyncio.to_thread(wait_until, lambda: len(running(host)) > 1, "it runs")
            network.silence(host)
            await asyncio.to_thread(wait_until, lambda: not running(host), "program and shell are gone")

    asyncio.run(work())

"""Looks at hosts go over connections that stay open, and are closed when they should be; on real sshd hosts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from inventory import remote
from inventory.models import Device, SshIdentity
from inventory.remote import Connection, RemoteError, errors, kept
from inventory.remote.kept import Question
from tests.conftest import wait_until
from tests.lab.network import Network
from tests.lab.sshd_host import MakeHost, SshdHost
from tests.reliability.conftest import device_on, network

__all__ = ["network"]

WORKER = """
import json, sys
import django
django.setup()
from inventory.models import Device, SshIdentity
from inventory.remote import kept
async def look(connection):
    return (await connection.run(["true"])).succeeded
device = Device(pk=1, name="box", identity=SshIdentity(private_key=sys.argv[2]), **json.loads(sys.argv[1]))
assert kept.ask([kept.Question(device, look, 20.0)]) == [True]
print("looked", flush=True)
sys.stdin.read()
"""

pytestmark = pytest.mark.django_db(transaction=True)


async def boot_id(connection: Connection) -> str:
    return (await connection.run(["cat", "/proc/sys/kernel/random/boot_id"])).stdout


def look(*devices: Device, limit_seconds: float = 20.0) -> list[str | RemoteError]:
    return kept.ask([Question(device, boot_id, limit_seconds) for device in devices])


@pytest.fixture
def host(make_host: MakeHost) -> SshdHost:
    return make_host()


@pytest.fixture
def device(host: SshdHost, identity: SshIdentity) -> Device:
    return device_on(host, identity, "box")


@pytest.fixture(autouse=True)
def own_keeper() -> Iterator[None]:
    kept.keepers.clear()
    yield
    kept.keepers.clear()


def test_many_looks_log_in_once_to_each_host(make_host: MakeHost, identity: SshIdentity) -> None:
    hosts = [make_host() for _ in range(5)]
    devices = [device_on(host, identity) for host in hosts]
    answers = [look(*devices) for _ in range(6)]
    assert len({str(answer) for found in answers for answer in found}) == 1
    assert [host.log_ins for host in hosts] == [1] * 5
    assert [len(host.sessions()) for host in hosts] == [1] * 5


def test_broken_connection_is_opened_again_unnoticed(host: SshdHost, device: Device) -> None:
    before = look(device)
    for pid in host.sessions():
        os.kill(pid, signal.SIGKILL)
    assert look(device) == before
    assert host.log_ins == 2


def test_device_that_was_changed_is_logged_in_to_as_it_is_now(
    host: SshdHost, device: Device, make_host: MakeHost
) -> None:
    look(device)
    other = make_host()
    Device.objects.filter(pk=device.pk).update(host=other.address, port=other.port)
    device.refresh_from_db()
    (answer,) = look(device)
    assert isinstance(answer, remote.HostKeyChanged), "another machine has another key"
    wait_until(lambda: not host.sessions(), "the connection to the old address is closed")


def test_device_that_was_removed_is_let_go_by_the_next_look_at_any_other(
    host: SshdHost, device: Device, make_host: MakeHost, identity: SshIdentity
) -> None:
    look(device)
    device.delete()
    look(device_on(make_host(), identity))
    wait_until(lambda: not host.sessions(), "the connection to the removed device is closed")


def test_connection_that_nobody_uses_is_closed(
    host: SshdHost, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "IDLE_SECONDS", 0.1)
    look(device)
    wait_until(lambda: not host.sessions(), "the connection is closed")


def test_no_more_than_a_bounded_number_is_kept(
    make_host: MakeHost, identity: SshIdentity, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "MOST", 2)
    hosts = [make_host() for _ in range(3)]
    assert "" not in look(*(device_on(host, identity) for host in hosts))
    wait_until(lambda: sum(len(host.sessions()) for host in hosts) == 2, "one of three is closed")


def test_host_key_that_was_changed_is_found_when_the_connection_is_old(
    host: SshdHost, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    look(device)
    host.stop()
    host.new_host_key()
    host.start()
    monkeypatch.setattr(kept, "OLDEST_SECONDS", 0.0)
    (answer,) = look(device)
    assert isinstance(answer, remote.HostKeyChanged)


def worker(device: Device) -> subprocess.Popen[str]:
    """Another process that looks, as the next worker does."""
    assert device.identity is not None
    facts = {
        "host": device.host,
        "port": device.port,
        "username": device.username,
        "host_key": device.host_key,
    }
    argv = [sys.executable, "-c", WORKER, json.dumps(facts), device.identity.private_key]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_killed_worker_leaves_no_connection_and_the_next_one_makes_its_own(
    host: SshdHost, device: Device
) -> None:
    for log_ins in (1, 2):
        with worker(device) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "looked\n"
            assert (host.log_ins, len(host.sessions())) == (log_ins, 1)
            process.kill()
        wait_until(lambda: not host.sessions(), "its connection is gone")


def test_host_that_falls_silent_costs_its_own_limit_and_not_the_others_answers(
    network: Network, identity: SshIdentity, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "ALIVE_SECONDS", 0.5)
    monkeypatch.setattr(errors, "CONNECT_SECONDS", 1.0)
    hosts = [network.add_host(identity.public_key) for _ in range(2)]
    devices = [device_on(host, identity) for host in hosts]
    look(*devices)
    network.silence(hosts[0])
    silent, other = look(*devices)
    assert isinstance(silent, remote.HostUnreachable)
    assert isinstance(other, str)
    network.heal(hosts[0])
    assert isinstance(look(*devices)[0], str)

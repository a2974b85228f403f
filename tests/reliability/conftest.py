"""Hosts with a real sshd for the failure catalogue: on loopback addresses, and on a network that can be cut."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from inventory import remote
from inventory.models import Device, SshIdentity
from inventory.remote import errors, ssh
from serving.models import ManagedProcess
from tests.conftest import require
from tests.inventory.conftest import make_progress
from tests.lab import network as lab_network
from tests.lab.network import Network
from tests.lab.sshd_host import SshdHost
from tests.planner_app.conftest import site_environment, worker
from tests.serving.conftest import Laboratory, laboratory, llama_facts, model_bytes

__all__ = ["laboratory", "llama_facts", "make_progress", "model_bytes", "site_environment", "worker"]


@pytest.fixture
def network(sshd: Path, tmp_path: Path) -> Iterator[Network]:
    require(
        "a network of namespaces",
        lab_network.is_possible(),
        "run as root with iproute2 and iptables installed",
    )
    one = Network(sshd, tmp_path / "network")
    one.open()
    try:
        yield one
    finally:
        one.close()


def device_on(host: SshdHost, identity: SshIdentity, name: str = "") -> Device:
    """The host as a registered device whose key was confirmed."""
    key = asyncio.run(remote.fetch_host_key(host.address, host.port))
    return Device.objects.create(
        name=name or host.address,
        host=host.address,
        port=host.port,
        username=host.username,
        address=host.address,
        identity=identity,
        host_key=key.line,
    )


@pytest.fixture
def lab_hosts(
    network: Network, identity: SshIdentity, laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, SshdHost]]:
    """The laboratory's three devices on three hosts of the network; silence is noticed within seconds."""
    monkeypatch.setattr(errors, "CONNECT_SECONDS", 6.0)  # a busy machine is slow, not silent
    monkeypatch.setattr(ssh, "KEEPALIVE_SECONDS", 2)
    hosts = {}
    for name, device in laboratory.devices.items():
        host = network.add_host(identity.public_key)
        key = asyncio.run(remote.fetch_host_key(host.address, host.port))
        device.connection, device.identity, device.host_key = Device.Connections.SSH, identity, key.line
        device.host = device.address = host.address
        device.username = host.username
        device.save()
        hosts[name] = host
    yield hosts
    for host in hosts.values():
        network.heal(host)


def alive(marker: str) -> list[int]:
    """Processes of this machine, which all lab hosts share, that carry the marker."""
    wanted, found = f"E2LLM_MARKER={marker}".encode(), []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def all_alive() -> dict[str, list[int]]:
    """Marker of every process that was ever written down -> what runs of it."""
    markers = ManagedProcess.objects.values_list("marker", flat=True)
    return {marker: pids for marker in markers if (pids := alive(marker))}

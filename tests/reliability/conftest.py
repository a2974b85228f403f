"""Hosts with a real sshd for the failure catalogue: on loopback addresses, and on a network that can be cut."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from inventory import remote
from inventory.models import Device, SshIdentity
from tests.conftest import require
from tests.inventory.conftest import make_progress
from tests.lab import network as lab_network
from tests.lab.network import Network
from tests.lab.sshd_host import SshdHost
from tests.serving.conftest import llama_facts, model_bytes

__all__ = ["llama_facts", "make_progress", "model_bytes"]

MakeHost = Callable[..., SshdHost]


@pytest.fixture
def identity(transactional_db: None) -> SshIdentity:
    return remote.create_identity("lab")


@pytest.fixture
def make_host(sshd: Path, tmp_path: Path, identity: SshIdentity) -> Iterator[MakeHost]:
    hosts: list[SshdHost] = []

    def make(**options: str) -> SshdHost:
        host = SshdHost(sshd, tmp_path / f"host{len(hosts)}", f"127.0.0.{61 + len(hosts)}", **options)
        host.start(identity.public_key)
        hosts.append(host)
        return host

    yield make
    for host in hosts:
        host.stop()


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

"""The rule that a deployment's page shows for its workers: strangers stay out, the master gets in."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from django.test import Client

from inventory.models import SshIdentity
from serving.core.firewall import WorkerPort
from tests.conftest import require, wait_until
from tests.lab.network import Network
from tests.lab.sshd_host import SshdHost
from tests.serving.conftest import Laboratory

PORT = 18400
NFT = Path("/usr/sbin/nft")


def reaches(network: Network, host: SshdHost, address: str) -> bool:
    """Whether a connection from the host to the worker's port is accepted."""
    attempt = f"import socket; socket.create_connection(({address!r}, {PORT}), 2)"
    words = ["ip", "netns", "exec", network.namespace(host), "python3", "-c", attempt]
    return subprocess.run(words, capture_output=True).returncode == 0


def test_a_stranger_cannot_reach_a_worker_once_the_rule_is_applied(
    network: Network, identity: SshIdentity
) -> None:
    require("nftables", NFT.exists(), "apt install nftables")
    worker, master, stranger = (network.add_host(identity.public_key) for _ in range(3))
    listen = f"import socket, time; s = socket.create_server(({worker.address!r}, {PORT})); time.sleep(600)"
    server = subprocess.Popen(["ip", "netns", "exec", network.namespace(worker), "python3", "-c", listen])
    try:
        wait_until(lambda: reaches(network, stranger, worker.address), "the worker listens")
        for rule in WorkerPort("w", worker.address, PORT, master.address).rules:
            network.run_on(worker, "sh", "-c", rule)
        assert not reaches(network, stranger, worker.address)
        assert reaches(network, master, worker.address)
        assert reaches(network, worker, worker.address)
    finally:
        server.kill()
        server.wait()


def test_the_page_shows_the_rule_of_each_worker_and_which_address_is_public(
    laboratory: Laboratory, admin_client: Client
) -> None:
    deployment = laboratory.deploy(laboratory.split())
    page = f"/deployments/{deployment.pk}/"
    box = laboratory.devices["box-2"]
    worker = deployment.replicas.get().processes.get(kind="worker")
    text = admin_client.get(page).content.decode()
    assert f"ip daddr {box.address} tcp dport {worker.port}" in text
    assert "an address of the internet" not in text
    type(box).objects.filter(pk=box.pk).update(address="8.8.8.8")
    assert "an address of the internet" in admin_client.get(page).content.decode()
    type(box).objects.filter(pk=box.pk).update(address=box.address)


@pytest.mark.parametrize(
    ("address", "is_public"),
    [
        ("10.0.0.5", False),
        ("192.168.1.9", False),
        ("127.0.0.31", False),
        ("8.8.8.8", True),
        ("100.64.0.1", False),
    ],
)
def test_an_address_of_the_internet_is_called_so(address: str, is_public: bool) -> None:
    assert WorkerPort("w", address, PORT, "10.0.0.1").is_public is is_public

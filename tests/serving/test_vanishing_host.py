"""Two real SSH hosts, one of which goes away in the middle of a roll-out."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import asyncssh
import pytest

from inventory.models import Device
from inventory.remote import create_identity
from jobs.models import Job
from serving.models import Deployment, ManagedProcess, Replica
from serving.runner import reconcile, states
from serving.services import deployments
from tests.conftest import wait_until
from tests.lab.sshd_host import SshdHost
from tests.serving.conftest import Laboratory
from tests.serving.test_roll_out import is_alive


def children(pid: int) -> list[int]:
    """Descendants of a process, the deepest first."""
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(entry.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent == pid:
            child = int(entry.parent.name)
            found += [*children(child), child]
    return found


def vanish(host: SshdHost) -> None:
    """Cut every connection to the host and refuse new ones; what runs detached on it goes on."""
    assert host.process is not None, "the host is up"
    connections = children(host.process.pid)
    host.stop()
    for pid in connections:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def hosts(laboratory: Laboratory, sshd: Path, tmp_path: Path) -> Iterator[dict[str, SshdHost]]:
    """box-1 and box-2 of the laboratory, now behind SSH."""
    identity = create_identity("lab")
    found = {}
    for name in ("box-1", "box-2"):
        device = laboratory.devices[name]
        host = SshdHost(sshd, tmp_path / name, str(device.address), path=os.environ["PATH"])
        host.start(identity.public_key)
        device.connection, device.host, device.port = Device.Connections.SSH, host.address, host.port
        device.username, device.identity = host.username, identity
        device.host_key = public_line(host.folder / "host_key")
        device.save()
        found[name] = host
    yield found
    for host in found.values():
        if host.process is None:
            host.start()
    for deployment in Deployment.objects.all():
        deployments.stop(deployment, None)
        laboratory.work()
    for host in found.values():
        host.stop()


@pytest.fixture
def endless_load(laboratory: Laboratory, tmp_path: Path) -> None:
    """The llama-server of box-1 never gets to load, so that whatever happens meanwhile happens meanwhile."""
    device, program = laboratory.devices["box-1"], tmp_path / "llama-server"
    program.write_text("#!/bin/sh\nwhile :; do sleep 0.2; done\n")
    program.chmod(0o755)
    device.llama = device.llama | {"server_path": str(program)}
    device.save()


def public_line(private_key: Path) -> str:
    return asyncssh.read_private_key(str(private_key)).export_public_key().decode().strip()


def test_host_that_vanishes_is_named_and_cleaned_when_it_is_back(
    laboratory: Laboratory, hosts: dict[str, SshdHost], endless_load: None
) -> None:
    plan = laboratory.plan(laboratory.split())
    deployment = deployments.deploy(plan, laboratory.cluster(), laboratory.model, None)
    worker = threading.Thread(target=laboratory.work)
    worker.start()
    loading = Replica.objects.filter(state=Replica.States.LOADING)
    wait_until(loading.exists, "the model is being loaded", seconds=120)
    vanish(hosts["box-2"])
    worker.join()

    deployment.refresh_from_db()
    assert deployment.state == Deployment.States.FAILED
    assert "box-2" in deployment.state_reason
    left = states.left_on_hosts().get()
    assert (str(left.device), left.state) == ("box-2", ManagedProcess.States.UNKNOWN)
    assert is_alive(left)

    hosts["box-2"].start()
    Job.objects.update(ended_at=None)
    reconcile.reconcile()
    laboratory.work()
    wait_until(lambda: not is_alive(left), "the worker that was left has ended")
    assert not states.left_on_hosts().exists()
    deployment.refresh_from_db()
    assert "box-2" in deployment.state_reason


def test_deployment_over_ssh_leaves_nothing_on_the_hosts(
    laboratory: Laboratory, hosts: dict[str, SshdHost]
) -> None:
    deployment = laboratory.deploy(laboratory.split())
    assert deployment.state == Deployment.States.RUNNING, deployment.state_reason
    runs = [Path(process.run_folder) for process in ManagedProcess.objects.all()]
    assert {run.parents[2].parent.name for run in runs} == {"box-1", "box-2"}
    deployments.stop(deployment, None)
    laboratory.work()
    assert not any(run.exists() or (Path("/dev/shm") / run.name).exists() for run in runs)

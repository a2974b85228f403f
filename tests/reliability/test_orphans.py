"""Row 22: what runs without being managed is listed, never ended unasked; a host that returns is cleared."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from inventory.models import Device
from jobs.models import Job
from serving.models import Deployment, ManagedProcess
from serving.processes import whose
from serving.runner import reconcile
from serving.services import deployments
from tests.conftest import wait_until
from tests.lab.network import Network
from tests.lab.sshd_host import SshdHost
from tests.reliability.conftest import alive, all_alive
from tests.serving.conftest import Laboratory

ORPHAN = "e2llm-feedfeedfeed"


@pytest.fixture
def unmarked(llama_server: object) -> Iterator[subprocess.Popen[bytes]]:
    """Somebody's own llama-server, as far as its name goes."""
    process = subprocess.Popen(["sleep", "600"], executable="/bin/sleep")
    yield process
    assert process.poll() is None, "a process without our mark was ended"
    process.kill()
    process.wait()


@pytest.fixture
def orphan() -> Iterator[subprocess.Popen[bytes]]:
    """A process with our mark that no row knows, as a lost database leaves it."""
    variables = {"E2LLM_MARKER": ORPHAN, whose.VARIABLE: whose.installation_id()}
    process = subprocess.Popen(["sleep", "600"], env=os.environ | variables)
    yield process
    process.kill()
    process.wait()


def test_host_written_off_is_cleared_when_it_returns(
    lab_hosts: dict[str, SshdHost],
    laboratory: Laboratory,
    network: Network,
    unmarked: subprocess.Popen[bytes],
    orphan: subprocess.Popen[bytes],
    admin_client: Client,
) -> None:
    deployment = laboratory.deploy(laboratory.single())
    marker = ManagedProcess.objects.get().marker
    network.silence(lab_hosts["box-3"])
    Device.objects.filter(name="box-3").update(state=Device.States.LOST)
    deployments.stop(deployment, None)
    laboratory.work()
    deployment.refresh_from_db()
    assert "box-3 cannot be reached, so processes may still run there" in deployment.state_reason
    assert alive(marker), "it goes on meanwhile"

    network.heal(lab_hosts["box-3"])
    Job.objects.update(ended_at=timezone.now() - timedelta(hours=1))
    reconcile.reconcile()
    laboratory.work()
    deployment.refresh_from_db()
    assert deployment.state == Deployment.States.STOPPED
    assert all_alive() == {}

    assert orphan.poll() is None, "only a person ends what no deployment knows"
    page = admin_client.get("/deployments/left-over/").content.decode()
    assert f"process {orphan.pid}" in page
    assert f"process {unmarked.pid}" not in page
    box = laboratory.devices["box-3"]
    admin_client.post("/deployments/left-over/stop/", {"device": box.pk, "marker": ORPHAN})
    wait_until(lambda: orphan.poll() is not None, "the orphan has ended")

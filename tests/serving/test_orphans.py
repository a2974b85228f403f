"""Processes with our mark that no deployment knows, on a real host."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest
from django.test import Client
from django.utils import timezone

from inventory.models import Device
from serving.models import Deployment, ManagedProcess
from tests.conftest import wait_until
from tests.serving.test_pages import deployment

__all__ = ["deployment"]

MARKER = "e2llm-0123456789ab"


@pytest.fixture
def here(transactional_db: None) -> Device:
    return Device.objects.create(name="here", connection=Device.Connections.LOCAL, probed_at=timezone.now())


@pytest.fixture
def forgotten() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"], env=os.environ | {"E2LLM_MARKER": MARKER})
    yield process
    process.kill()
    process.wait()


def test_forgotten_process_is_listed_and_stopped_on_demand(
    admin_client: Client, here: Device, forgotten: subprocess.Popen[bytes]
) -> None:
    assert f"process {forgotten.pid}" in admin_client.get("/deployments/left-over/").content.decode()
    admin_client.post("/deployments/left-over/stop/", {"device": here.pk, "marker": MARKER})
    wait_until(lambda: forgotten.poll() is not None, "the forgotten process has ended")


def test_managed_process_is_no_orphan(
    admin_client: Client, here: Device, forgotten: subprocess.Popen[bytes], deployment: Deployment
) -> None:
    replica = deployment.replicas.all()[0]
    ManagedProcess.objects.create(replica=replica, device=here, kind="master", marker=MARKER, state="ready")
    assert f"process {forgotten.pid}" not in admin_client.get("/deployments/left-over/").content.decode()
    page = admin_client.post(
        "/deployments/left-over/stop/", {"device": here.pk, "marker": MARKER}, follow=True
    )
    assert "A deployment manages this process" in page.content.decode()
    assert forgotten.poll() is None


@pytest.mark.parametrize(
    "marker", ["", "e2llm-", "e2llm-0123456789ab; rm -rf /", "-rf", "e2llm-ZZZZZZZZZZZZ"]
)
def test_what_is_not_a_mark_of_ours_is_refused(admin_client: Client, here: Device, marker: str) -> None:
    page = admin_client.post(
        "/deployments/left-over/stop/", {"device": here.pk, "marker": marker}, follow=True
    )
    assert "is not a mark of ours" in page.content.decode()


def test_viewer_may_not_look_or_stop(viewer_client: Client, here: Device) -> None:
    assert viewer_client.get("/deployments/left-over/").status_code == 403
    assert viewer_client.post("/deployments/left-over/stop/", {"device": here.pk}).status_code == 403

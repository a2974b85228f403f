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
from serving.processes import whose
from serving.processes.observe import Seen
from serving.services import orphans
from tests.conftest import wait_until
from tests.serving.test_pages import deployment

__all__ = ["deployment"]

MARKER = "e2llm-0123456789ab"
FOREIGN = "e2llm-fedcba987654"


@pytest.fixture
def here(transactional_db: None) -> Device:
    return Device.objects.create(name="here", connection=Device.Connections.LOCAL, probed_at=timezone.now())


@pytest.fixture
def forgotten() -> Iterator[subprocess.Popen[bytes]]:
    yield from sleeping({"E2LLM_MARKER": MARKER, whose.VARIABLE: whose.installation_id()})


@pytest.fixture
def foreign() -> Iterator[subprocess.Popen[bytes]]:
    """What another dashboard on the same host has started."""
    yield from sleeping({"E2LLM_MARKER": FOREIGN, whose.VARIABLE: "feedfeedfeed"})


def sleeping(variables: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"], env=os.environ | variables)
    yield process
    process.kill()
    process.wait()


def test_forgotten_process_is_listed_and_stopped_on_demand(
    admin_client: Client, here: Device, forgotten: subprocess.Popen[bytes]
) -> None:
    assert f"process {forgotten.pid}" in admin_client.get("/deployments/left-over/").content.decode()
    admin_client.post("/deployments/left-over/stop/", {"device": here.pk, "marker": MARKER})
    wait_until(lambda: forgotten.poll() is not None, "the forgotten process has ended")


def test_process_of_another_dashboard_is_named_and_cannot_be_stopped(
    admin_client: Client, here: Device, foreign: subprocess.Popen[bytes]
) -> None:
    text = admin_client.get("/deployments/left-over/").content.decode()
    assert f"process {foreign.pid}" in text
    assert "installation feedfeedfeed" in text
    assert FOREIGN not in text, "there is no button that names it"
    page = admin_client.post(
        "/deployments/left-over/stop/", {"device": here.pk, "marker": FOREIGN}, follow=True
    )
    assert "Another dashboard started this process" in page.content.decode()
    assert foreign.poll() is None


def test_process_is_ours_by_its_row_when_it_does_not_say_who_started_it(
    admin_client: Client, here: Device, deployment: Deployment
) -> None:
    row = {"replica": deployment.replicas.all()[0], "device": here, "kind": "master", "state": "stopped"}
    ManagedProcess.objects.create(marker=MARKER, **row)
    for process in sleeping({"E2LLM_MARKER": MARKER}):
        text = admin_client.get("/deployments/left-over/").content.decode()
        assert f"process {process.pid}" in text
        assert MARKER in text


def test_address_opened_directly_is_a_whole_page(admin_client: Client, here: Device) -> None:
    whole = admin_client.get("/deployments/left-over/").content.decode()
    part = admin_client.get("/deployments/left-over/", headers={"HX-Request": "true"}).content.decode()
    assert "<html" in whole
    assert "<h1" in whole
    assert "<html" not in part


def seen(command: str, marker: str = MARKER) -> Seen:
    return Seen(1, marker, "1", "S", 0, whose.installation_id(), command)


def test_devices_of_one_machine_are_told_apart_by_row_or_address(db: None) -> None:
    boxes = [
        Device.objects.create(name=f"box-{number}", connection="local", address=f"127.0.0.1{number}")
        for number in (1, 2)
    ]
    nothing = orphans.Known(frozenset(), {})
    by_row = orphans.Known(frozenset(), {MARKER: boxes[1].pk})
    assert orphans.home_of(seen("rpc-server -H 127.0.0.12 -p 1"), boxes, nothing) == (boxes[1],)
    assert orphans.home_of(seen("rpc-server"), boxes, by_row) == (boxes[1],)
    assert orphans.home_of(seen("rpc-server"), boxes, nothing) == tuple(boxes)


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

"""What is left over on the devices, in a real browser: long command lines, and both ways out."""

from __future__ import annotations

import os
import subprocess

import pytest
from django.utils import timezone
from playwright.sync_api import Browser
from pytest_django.live_server_helper import LiveServer

from accounts.models import User
from inventory.models import Device
from serving.processes import whose
from tests.e2llm_web.test_accessibility import faults, open_page

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

MARKERS = {
    "e2llm-0123456789ab": "",
    "e2llm-fedcba987654": "feedfeedfeed",
}  # of ours, and of another installation
LONG = f"/opt/{'llama' * 12}/{'server' * 12}"


@pytest.mark.parametrize("screen", ["desk", "phone"])
def test_left_over_processes_fit_the_screen_and_are_readable_by_everybody(
    screen: str, browser: Browser, live_server: LiveServer, admin: User
) -> None:
    Device.objects.create(name="here", connection=Device.Connections.LOCAL, probed_at=timezone.now())
    processes = [
        subprocess.Popen(
            [LONG, "600"],
            executable="/bin/sleep",
            env=os.environ | {"E2LLM_MARKER": marker, whose.VARIABLE: other or whose.installation_id()},
        )
        for marker, other in MARKERS.items()
    ]
    try:
        page = open_page(browser, live_server, admin, screen, "light")
        page.goto(f"{live_server.url}/deployments/left-over/")
        for process in processes:
            assert page.get_by_text(f"process {process.pid}").is_visible()
        assert page.get_by_text("Not to be adopted: It is not the llama.cpp").count() == 1
        assert page.get_by_role("button", name="Stop").count() == 1
        assert faults(page) == []
    finally:
        for process in processes:
            process.kill()
            process.wait()

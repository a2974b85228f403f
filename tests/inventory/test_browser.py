"""The inventory as a person at a browser meets it: a host is added, looked through, timed, cancelled and linked."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from accounts import vault
from accounts.models import User
from demo.hosts import DemoHost
from inventory.models import Device, Profile
from tests.conftest import wait_until
from tests.e2llm_web.test_accessibility import complaints
from tests.inventory.test_whole_path import left_behind
from tests.planner_app.conftest import site_environment, web, worker
from tests.planner_app.test_browser import logged_in

__all__ = ["site_environment", "web", "worker"]
pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
PATIENCE_MS = 90_000


@pytest.fixture
def page(
    browser: Browser, web: str, admin: User, lab: list[DemoHost], small_model: Path, tmp_path: Path
) -> Page:
    """An admin who has just logged in; the first host holds a model, and nothing is registered."""
    shutil.copy(vault.key_file(), tmp_path)
    place = lab[0].home / "models"
    place.mkdir()
    shutil.copy(small_model, place / "small.gguf")
    context = logged_in(browser, web, admin)
    context.set_default_timeout(PATIENCE_MS)
    expect.set_options(timeout=PATIENCE_MS)
    return context.new_page()


@pytest.mark.usefixtures("worker")
def test_from_a_fingerprint_to_plots_of_what_was_timed(page: Page, web: str, lab: list[DemoHost]) -> None:
    heard = complaints(page)
    add(page, web, lab[0])
    add(page, web, lab[1])
    measure_links(page, web)
    look_at_the_model(page, web)
    cancel_a_profile(page, web)
    wait_until(lambda: left_behind(lab) == [], "nothing is left on the host")
    assert not Profile.objects.exists()
    see_the_plots(page, web)
    assert heard == []


def add(page: Page, web: str, host: DemoHost) -> None:
    page.goto(f"{web}/devices/add/")
    typed = {"name": host.name, "host": host.address, "port": str(host.port)}
    for field, value in (typed | {"username": host.username, "password": host.password}).items():
        page.fill(f"#id_{field}", value)
    page.get_by_role("button", name="Look it up").click()
    assert page.inner_text(".fingerprint code") in host.key_text
    assert not Device.objects.filter(name=host.name).exists()
    page.get_by_role("button", name="The fingerprint matches").click()
    expect(page.locator("main .lead").get_by_text("Online")).to_be_visible()
    expect(page.get_by_role("heading", name="Usable memory")).to_be_visible()


def look_at_the_model(page: Page, web: str) -> None:
    page.goto(f"{web}/models/")
    page.get_by_role("button", name="Look for models").click()
    page.get_by_role("table").get_by_role("link", name="small").click()
    expect(page.get_by_role("region", name="What each device holds alone")).to_contain_text(
        "30 of 30 blocks in RAM"
    )


def cancel_a_profile(page: Page, web: str) -> None:
    page.goto(f"{web}/profiles/")
    page.get_by_label("box-2").uncheck()
    page.get_by_label("Thorough").check()
    page.get_by_role("button", name="Start timing").click()
    expect(page.locator("[data-job-message]")).to_contain_text("Timing, round")
    page.get_by_role("button", name="Cancel", exact=True).click()
    page.get_by_role("button", name="Cancel the work").click()
    expect(page.locator("[data-job-state]")).to_contain_text("Cancelled")


def see_the_plots(page: Page, web: str) -> None:
    page.goto(f"{web}/profiles/")
    page.get_by_label("box-2").uncheck()
    page.get_by_role("button", name="Start timing").click()
    page.get_by_role("region", name="Profiles").get_by_role("link", name="small").click()
    expect(page.locator(".js-plotly-plot")).to_have_count(4)
    expect(page.locator(".js-plotly-plot .scatterlayer .trace").first).to_be_visible()
    page.get_by_role("button", name="Show table").first.click()
    expect(page.get_by_role("columnheader", name="Requests decoded together").first).to_be_visible()


def measure_links(page: Page, web: str) -> None:
    page.goto(f"{web}/links/")
    page.get_by_role("button", name="Measure", exact=True).click()
    expect(page.get_by_role("region", name="Matrix of links").get_by_text("b/s")).to_have_count(2)
    expect(page.get_by_text("2 directions by ")).to_be_visible()

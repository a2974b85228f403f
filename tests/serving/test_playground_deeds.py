"""What one does with an answer in the playground: stop, go on, ask again, change the question, copy, save."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.test import Client
from playwright.sync_api import Browser, Page, Route, expect
from pytest_django.live_server_helper import LiveServer

from accounts.models import User
from serving.core.openai import chat_request
from serving.models import Conversation, Deployment
from serving.services import playground
from serving.services.playground import BadQuestion
from tests.e2llm_web.test_accessibility import faults, open_page
from tests.serving.test_pages import deployment

__all__ = ["deployment"]

STREAM = 'data: {{"choices": [{{"delta": {{"content": {0}}}}}]}}\n\n'
END = 'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
# Sends the first words of an answer and then nothing, until the page gives up.
SLOW_ANSWER = """() => {
  const real = window.fetch;
  window.fetch = (path, options) => {
    if (!String(path).includes("/playground/ask/")) return real(path, options);
    const body = new ReadableStream({ start(stream) {
      stream.enqueue(new TextEncoder().encode('data: {"choices": [{"delta": {"content": "Once upon"}}]}\\n\\n'));
      options.signal.addEventListener("abort", () => stream.error(new DOMException("gone", "AbortError")));
    } });
    return Promise.resolve(new Response(body, { status: 200 }));
  };
}"""


class Answers:
    """Answers the page's questions one after another, and remembers them."""

    def __init__(self, page: Page, *texts: str) -> None:
        self.asked: list[dict[str, Any]] = []
        self.texts = list(texts)
        page.route("**/playground/ask/", self.answer)

    def answer(self, route: Route) -> None:
        self.asked.append(json.loads(route.request.post_data or ""))
        text = self.texts.pop(0)
        end = "" if text.endswith("…") else END
        body = STREAM.format(json.dumps(text.removesuffix("…"))) + end
        route.fulfill(content_type="text/event-stream", body=body)


@pytest.fixture
def page(browser: Browser, live_server: LiveServer, admin: User, deployment: Deployment) -> Iterator[Page]:
    opened = open_page(browser, live_server, admin, "desk", "light")
    opened.goto(f"{live_server.url}/playground/")
    yield opened
    opened.context.close()


def send(page: Page, text: str) -> None:
    page.fill("[name=text]", text)
    page.click("[data-send]")


def texts(page: Page) -> Any:
    return expect(page.locator(".bubble .bubble-text"))


browser_test = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


def ask_the_first_again(page: Page) -> Answers:
    """Two questions, and the first answer asked for again."""
    answers = Answers(page, "One.", "Two.", "Three.")
    send(page, "First?")
    texts(page).to_have_text(["First?", "One."])
    send(page, "Second?")
    texts(page).to_have_text(["First?", "One.", "Second?", "Two."])
    page.get_by_role("button", name="Regenerate").first.click()
    texts(page).to_have_text(["First?", "Three."])
    return answers


class TestInABrowser:
    pytestmark = browser_test

    def test_a_stopped_answer_keeps_what_came_and_can_go_on(self, page: Page) -> None:
        page.evaluate(SLOW_ANSWER)
        send(page, "Tell me a story")
        texts(page).to_have_text(["Tell me a story", "Once upon"])
        page.keyboard.press("Escape")
        expect(page.locator(".bubble-facts").last).to_contain_text("stopped by you")
        expect(page).to_have_url(re.compile(r"\?chat=\d+"))
        page.reload()
        texts(page).to_have_text(["Tell me a story", "Once upon"])
        answers = Answers(page, " a time.")
        page.get_by_role("button", name="Continue").click()
        texts(page).to_have_text(["Tell me a story", "Once upon a time."])
        assert answers.asked[0]["messages"][-1] == {"role": "assistant", "content": "Once upon"}
        assert faults(page) == []

    def test_an_answer_that_was_cut_says_so_and_goes_on(self, page: Page) -> None:
        Answers(page, "Once upon…", " a time.")
        send(page, "Tell me a story")
        expect(page.locator("[data-fault]").last).to_contain_text("cut off before its end")
        expect(page).to_have_url(re.compile(r"\?chat=\d+"))
        page.reload()
        expect(page.locator("[data-fault]").last).to_contain_text("cut off before its end")
        page.get_by_role("button", name="Continue").click()
        texts(page).to_have_text(["Tell me a story", "Once upon a time."])
        expect(page.locator("[data-fault]").last).to_be_hidden()

    def test_asking_again_replaces_the_answer_and_what_came_after(self, page: Page) -> None:
        answers = ask_the_first_again(page)
        assert answers.asked[-1]["messages"] == [{"role": "user", "content": "First?"}]

    def test_an_answer_that_was_asked_for_again_is_one_of_two_also_after_a_reload(self, page: Page) -> None:
        ask_the_first_again(page)
        expect(page.locator("[data-variants]:visible")).to_contain_text("2 / 2")
        expect(page).to_have_url(re.compile(r"\?chat=\d+"))
        with page.expect_response("**/playground/keep/"):
            page.get_by_role("button", name="Earlier answer").click()
        texts(page).to_have_text(["First?", "One.", "Second?", "Two."])
        page.reload()
        texts(page).to_have_text(["First?", "One.", "Second?", "Two."])
        expect(page.locator("[data-variants]:visible")).to_contain_text("1 / 2")
        assert faults(page) == []
        page.get_by_role("button", name="Later answer").click()
        texts(page).to_have_text(["First?", "Three."])

    def test_an_edit_can_be_given_up_and_replaces_only_what_is_sent(self, page: Page) -> None:
        answers = Answers(page, "One.", "Two.")
        send(page, "First?")
        texts(page).to_have_text(["First?", "One."])
        page.get_by_role("button", name="Edit").click()
        expect(page.locator("[data-editing]")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.locator("[data-editing]")).to_be_hidden()
        expect(page.locator("[name=text]")).to_have_value("")
        texts(page).to_have_text(["First?", "One."])
        page.get_by_role("button", name="Edit").click()
        expect(page.locator("[name=text]")).to_have_value("First?")
        page.keyboard.type(" Really?")
        page.keyboard.press("Enter")
        texts(page).to_have_text(["First? Really?", "Two."])
        assert len(answers.asked[-1]["messages"]) == 1

    def test_settings_are_sent_shown_as_code_and_the_system_prompt_is_kept(self, page: Page) -> None:
        answers = Answers(page, "Arr.")
        page.fill("#system", "You are a pirate.")
        page.fill("#top_p", "0.9")
        page.fill("#seed", "7")
        page.fill("#temperature", "0")
        send(page, "Hello")
        texts(page).to_have_text(["Hello", "Arr."])
        asked = answers.asked[0]
        assert (asked["top_p"], asked["seed"], asked["temperature"]) == (0.9, 7, 0)
        assert asked["messages"][0] == {"role": "system", "content": "You are a pirate."}
        code = page.locator("[data-code=curl]").text_content() or ""
        body = json.loads(code[code.index("-d '") + 4 :].rstrip().removesuffix("'"))
        assert chat_request(body, len(code)).body["seed"] == 7
        assert "    top_p=0.9,\n    seed=7,\n" in (page.locator("[data-code=python]").text_content() or "")
        expect(page).to_have_url(re.compile(r"\?chat=\d+"))
        page.reload()
        expect(page.locator("#system")).to_have_value("You are a pirate.")
        texts(page).to_have_text(["Hello", "Arr."])

    def test_a_block_of_code_is_copied_without_its_button(self, page: Page) -> None:
        Answers(page, "Here:\n\n```python\nprint(1)\n```\n")
        send(page, "Code?")
        page.evaluate("""() => Object.defineProperty(navigator, "clipboard", {
            value: { writeText: async (text) => { window.copied = text; } } })""")
        page.locator(".code-copy").click()
        page.wait_for_function("window.copied !== undefined")
        assert page.evaluate("window.copied") == "print(1)\n"
        assert faults(page) == []

    def test_a_chat_is_saved_as_a_file(self, page: Page) -> None:
        Answers(page, "One.")
        send(page, "First?")
        expect(page).to_have_url(re.compile(r"\?chat=\d+"))
        page.reload()
        with page.expect_download() as download:
            page.get_by_role("link", name="Save this chat as Markdown").click()
        assert (
            download.value.path().read_text().startswith("# First?\n\n## You\n\nFirst?\n\n## Model\n\nOne.")
        )


@pytest.mark.django_db
def test_a_kept_answer_has_its_fault_its_whole_path_and_those_before_it(
    admin_client: Client, admin: User
) -> None:
    facts: Any = {"decode_replica": "M2 (box-2)", "continued_from": "M1 (box-1)"}
    other: Any = [{"role": "assistant", "content": "An earlier one.", "facts": {}}]
    answer = {"role": "assistant", "content": "A.", "facts": facts, "fault": "It was cut.", "others": [other]}
    said: list[dict[str, Any]] = [{"role": "user", "content": "?", "facts": {}}, {**answer, "place": 1}]
    body = {"id": None, "messages": said}
    chat = admin_client.post("/playground/keep/", body, content_type="application/json").json()["id"]
    assert json.loads(admin.conversations.get(pk=chat).messages) == said
    assert "M1 (box-1), then M2 (box-2)" in admin_client.get(f"/playground/{chat}/export/").content.decode()
    said[1]["others"] = 7
    assert admin_client.post("/playground/keep/", body, content_type="application/json").status_code == 400


@pytest.mark.django_db
def test_a_saved_chat_has_its_figures_and_is_nobody_elses(
    admin_client: Client, viewer_client: Client, admin: User
) -> None:
    facts = {"ttft_seconds": 0.5, "tokens_per_second": 20, "prefill_replica": "P1", "decode_replica": "D1"}
    said = [{"role": "user", "content": "<b>?"}, {"role": "assistant", "content": "A.", "facts": facts}]
    chat = Conversation.objects.create(user=admin, title="t", messages=json.dumps(said)).pk
    answer = admin_client.get(f"/playground/{chat}/export/")
    assert "*first token after 500 ms, 20 tokens/s, P1 → D1*" in answer.content.decode()
    assert answer.headers["Content-Disposition"].startswith("attachment")
    assert admin_client.get(f"/playground/{chat}/export/?as=json").json()["messages"] == said
    assert viewer_client.get(f"/playground/{chat}/export/").status_code == 404


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"top_p": 1.5}, "Top p"),
        ({"seed": 1e300}, "seed"),
        ({"seed": float("inf")}, "could not be read"),
        ({"max_tokens": 0}, "1 to"),
        ({"temperature": float("nan")}, "between 0 and 2"),
        ({"messages": []}, "Write a message"),
        ({"messages": "x"}, "could not be read"),
        ({"top_p": "high"}, "could not be read"),
    ],
)
def test_what_cannot_be_asked_is_said(changed: dict[str, Any], words: str) -> None:
    given = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]} | changed
    with pytest.raises(BadQuestion, match=words):
        playground.read_question(json.dumps(given).encode())


def test_an_empty_field_is_left_to_the_server_and_a_cut_answer_goes_on() -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hel"}]
    given = {"model": "tiny", "messages": messages, "temperature": None, "top_p": None, "seed": None}
    body = playground.read_question(json.dumps(given).encode()).body()
    assert body["continue_final_message"] is True
    assert (body["temperature"], "top_p" in body, "seed" in body) == (0.8, False, False)

"""From the first log-in to a streamed answer as a person at a browser sees it, on real parts only."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import asyncssh
import openai
import pytest
from playwright.sync_api import Page, expect

from demo.hosts import DemoHost
from tests.conftest import wait_until
from tests.e2e.watched_page import WatchedPage, watched_page
from tests.e2llm_web.test_accessibility import PAGES
from tests.planner_app.conftest import many_devices
from tests.running_site import Site

pytestmark = [pytest.mark.whole, pytest.mark.browser]
SLOTS = 1
LIVE_PARTS_MS, LOADED_MS = 2500, 400  # live parts are fetched again every two seconds, charts once
IN_FLIGHT = SLOTS + 3
PRESENT_GENERATION = "Number(document.querySelector('[data-run-generation]')?.textContent) || 0"


@pytest.fixture(scope="module")
def person(site: Site, chromium: str) -> Iterator[WatchedPage]:
    """Somebody who has logged in with the link that the site printed."""
    with watched_page(chromium, f"http://127.0.0.1:{site.port}") as watched:
        watched.page.goto(site.login_link)
        watched.page.get_by_role("button", name="Sign in").click()
        expect(watched.page.get_by_role("heading", name="Home", exact=True)).to_be_visible()
        yield watched


@pytest.fixture(scope="module")
def shown_fingerprint(person: WatchedPage, lab: list[DemoHost]) -> str:
    """What the page showed before the person confirmed it; the device is there and probed afterwards."""
    page, host = person.page, lab[0]
    person.open("/")
    page.get_by_role("link", name="Add your first device").click()
    typed = {"name": host.name, "host": host.address, "port": str(host.port)}
    for field, value in (typed | {"username": host.username, "password": host.password}).items():
        page.fill(f"#id_{field}", value)
    page.get_by_role("button", name="Look it up").click()
    fingerprint = page.inner_text(".fingerprint code")
    page.get_by_role("button", name="The fingerprint matches").click()
    expect(page.locator("main .lead").get_by_text("Online")).to_be_visible()
    return fingerprint


@pytest.fixture(scope="module")
def planned(person: WatchedPage, shown_fingerprint: str) -> str:
    """The address of a launch that waits for its confirm."""
    page = person.page
    person.open("/")
    page.get_by_role("link", name="Add a model").click()
    page.get_by_role("button", name="Look for models").click()
    expect(page.get_by_role("table").get_by_role("link")).to_be_visible()
    person.open("/")
    page.get_by_role("link", name="Plan and deploy").last.click()
    page.click("summary")
    page.fill("#id_context_tokens", "1024")
    page.fill("#id_input_tokens", "64")
    page.fill("#id_output_tokens", "128")
    page.fill("#id_max_slots", str(SLOTS))
    page.get_by_role("button", name="Measure and plan").click()
    expect(page.get_by_role("heading", name="The plan is ready. Deploy it?")).to_be_visible()
    return person.path()


@pytest.fixture(scope="module")
def deployed(person: WatchedPage, planned: str) -> None:
    page = person.page
    person.open(planned)
    page.get_by_role("button", name="Deploy", exact=True).click()
    expect(page.get_by_text("It answers.")).to_be_visible()


def client_of(person: WatchedPage, site: Site) -> openai.OpenAI:
    """A program with a key that the person made for it."""
    person.open("/settings/keys/")
    person.page.fill("#id_name", "notebook")
    person.page.get_by_role("button", name="Make key").click()
    key = person.page.locator("code", has_text="e2k-").first.inner_text()
    return openai.OpenAI(base_url=f"http://127.0.0.1:{site.gateway_port}/v1", api_key=key)


def served_model(client: openai.OpenAI) -> str:
    """Name of what is deployed; empty while the gateway does not know the key."""
    try:
        return client.models.list().data[0].id
    except openai.AuthenticationError:
        return ""


def chart(page: Page, name: str) -> list[dict[str, Any]]:
    """The traces that are drawn now."""
    traces = page.evaluate(f"document.querySelector('#{name}')?.figure?.data ?? []")
    return list(traces)


def ask(page: Page, text: str) -> None:
    page.fill("[data-composer] textarea", text)
    page.get_by_role("button", name="Send").click()


def test_the_link_works_once(site: Site, person: WatchedPage) -> None:
    browser = person.page.context.browser
    assert browser is not None
    stranger = browser.new_page()
    stranger.goto(site.login_link)
    expect(stranger.get_by_text("This link was used already")).to_be_visible()
    expect(stranger.get_by_role("button", name="Sign in")).to_have_count(0)
    stranger.close()


def test_the_fingerprint_is_shown_before_the_password_is_used(
    shown_fingerprint: str, lab: list[DemoHost], site: Site
) -> None:
    assert shown_fingerprint == asyncssh.import_public_key(lab[0].public_key).get_fingerprint()
    assert lab[0].authorized_keys.read_text().startswith("ssh-ed25519 ")
    kept = b"".join(path.read_bytes() for path in site.data.glob("e2llm.sqlite3*"))
    assert lab[0].password.encode() not in kept


def test_generations_arrive_while_the_page_is_open(person: WatchedPage, tmp_path: Path) -> None:
    page = person.page
    path = tmp_path / "many.cluster.json"
    path.write_text(json.dumps(many_devices(24)))
    person.open("/plans/file/")
    page.set_input_files("#id_cluster", path)
    page.select_option("#id_method", "ga")
    page.get_by_role("button", name="Plan with the file").click()
    first = wait_until(lambda: page.evaluate(PRESENT_GENERATION), "the first generation is shown")
    wait_until(lambda: page.evaluate(PRESENT_GENERATION) > first, "the number grows on the open page")
    expect(page.locator("#best-plan .stage").first).to_be_visible()
    expect(page.locator(".bottleneck-note")).to_be_visible()


def test_the_plan_is_drawn_before_its_confirm(person: WatchedPage, planned: str, lab: list[DemoHost]) -> None:
    page = person.page
    person.open(planned)
    expect(page.locator(".stage-name").first).to_contain_text(lab[0].name)
    expect(page.locator(".replica-head").first).to_contain_text(f"Slots\n{SLOTS}", use_inner_text=True)
    page.get_by_role("link", name="The whole plan").click()
    page.locator("#convergence").scroll_into_view_if_needed()
    drawn = wait_until(lambda: chart(page, "convergence"), "the search is drawn")
    assert drawn[0]["x"] == list(range(1, 61))


def test_the_queue_moves_while_requests_are_in_flight(
    person: WatchedPage, site: Site, deployed: None
) -> None:
    client = client_of(person, site)
    model = wait_until(lambda: served_model(client), "the gateway knows the key")
    done = threading.Event()

    def one() -> None:
        while not done.is_set():
            client.chat.completions.create(
                model=model, messages=[{"role": "user", "content": "Count to ten."}], max_tokens=40
            )

    person.open("/traffic/")
    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        answers = [pool.submit(one) for _ in range(IN_FLIGHT)]
        try:
            seen = wait_until(lambda: most_waiting(person.page), "the chart shows a queue", seconds=60)
            assert seen <= IN_FLIGHT - SLOTS
            expect(person.page.locator("#tile-running")).to_contain_text(f"{SLOTS} / {SLOTS}")
        finally:
            done.set()
    assert [answer.exception() for answer in answers] == [None] * IN_FLIGHT
    expect(person.page.locator("#tile-waiting [data-value]")).to_have_text("0")
    wait_until(lambda: chart(person.page, "chart-queue")[0]["y"][-1] == 0, "the chart shows that it is empty")


def most_waiting(page: Page) -> float:
    return max((count or 0 for trace in chart(page, "chart-queue")[:1] for count in trace["y"]), default=0)


def test_an_answer_appears_token_by_token_with_its_times(person: WatchedPage, deployed: None) -> None:
    page = person.page
    person.open("/playground/")
    page.fill("#max_tokens", "40")
    lengths = watch_growth(page)
    ask(page, "Write three sentences about bicycles.")
    facts = page.locator(".bubble-assistant .bubble-facts")
    expect(facts).to_contain_text("Time in the queue")
    for label in ("Time to the first token", "Speed", "tokens/s", "Path"):
        expect(facts).to_contain_text(label)
    grown = page.evaluate(lengths)
    assert len(grown) > 5, "the answer came in pieces"
    assert grown == sorted(grown)


def watch_growth(page: Page) -> str:
    """An expression for the lengths that the answer had, one for each time it was drawn."""
    page.evaluate(
        """() => {
            window.grown = [];
            new MutationObserver(() => {
                const length = document.querySelector(".is-streaming .bubble-text")?.textContent.length;
                if (length && length !== window.grown.at(-1)) window.grown.push(length);
            }).observe(document.querySelector("[data-log]"), { childList: true, subtree: true });
        }"""
    )
    return "window.grown"


def test_stop_ends_an_answer(person: WatchedPage, site: Site, deployed: None) -> None:
    page = person.page
    person.open("/playground/")
    page.fill("#max_tokens", "800")
    ask(page, "Tell a very long story about a lighthouse.")
    expect(page.locator(".is-streaming .bubble-text")).to_contain_text("the", ignore_case=True)
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("button", name="Send")).to_be_enabled()
    for words in ("stopped by you", "Time to the first token", "tokens/s"):
        expect(page.locator(".bubble-facts").last).to_contain_text(words)
    expect(page.locator(".bubble-assistant").get_by_role("button", name="Continue")).to_be_visible()
    query = "SELECT count(*) FROM serving_requestsample WHERE outcome = 'cancelled'"
    wait_until(lambda: site.rows(query) == [(1,)], "the gateway has let go of it")


def test_the_browser_has_nothing_to_complain_about(person: WatchedPage, deployed: None) -> None:
    own = [path.format(device=1, model=1, deployment=1, job=1) for path in PAGES if "no-such" not in path]
    for path in [*own, "/launches/1/", "/plans/1/"]:
        person.open(path)
        has_live_parts = person.page.locator("[hx-trigger*=every]").count() > 0
        person.page.wait_for_timeout(LIVE_PARTS_MS if has_live_parts else LOADED_MS)
    assert person.complaints == []

"""Two replicas side by side: on the traffic pages, and answering the same question in the playground."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone
from playwright.sync_api import Browser, Page, Route, expect
from pytest_django.live_server_helper import LiveServer

from accounts.models import User
from serving.charts.against_plan import against_plan
from serving.models import Deployment, Replica, RequestSample
from serving.services import roll_ups
from tests.e2llm_web.test_accessibility import faults, open_page
from tests.serving.test_pages import deployment, planned
from tests.serving.test_playground_browser import ANSWER

__all__ = ["deployment"]


@pytest.fixture
def pair(deployment: Deployment) -> tuple[Replica, Replica]:
    """Two decode replicas: the second is half as fast and fails one request in five."""
    deployment.plan["replicas"].append(planned("decode", "box-3"))
    deployment.save()
    Replica.objects.create(
        deployment=deployment, index=2, role="decode", slots=2, state="ready", api_key="k" * 20
    )
    prefill, fast, slow = deployment.replicas.all()
    now = timezone.now()
    for number in range(20):
        is_slow = number % 2 == 1
        RequestSample.objects.create(
            request_id=f"pair-{number}",
            deployment=deployment,
            received_at=now - timedelta(seconds=20 * number + 1),
            outcome="cut" if number % 10 == 1 else "ok",
            status=200,
            prefill_replica=prefill,
            decode_replica=slow if is_slow else fast,
            handover="hit",
            prompt_tokens=100,
            output_tokens=21,
            queued_seconds=2.0 if is_slow else 0.5,
            prefilled_tokens=80,
            prefill_seconds=0.4,
            handover_seconds=0.1,
            first_token_seconds=3.0 if is_slow else 1.5,
            total_seconds=5.0 if is_slow else 2.5,
        )
    return fast, slow


def cells(client: Client, address: str) -> dict[str, list[str]]:
    """First words of each row -> the two cells beside them."""
    text = client.get(address).content.decode()
    rows = re.findall(r'<tr><th scope="row">(.*?)</th><td>(.*?)</td><td>(.*?)</td></tr>', text, re.DOTALL)
    return {label: [left, right] for label, left, right in rows}


@pytest.mark.django_db
def test_two_replicas_are_compared_by_speed_waiting_and_errors(
    admin_client: Client, pair: tuple[Replica, Replica]
) -> None:
    rows = cells(admin_client, f"/traffic/replicas/?left={pair[0].pk}&right={pair[1].pk}&range=1h")
    assert rows["Tokens/s of one answer"] == [
        "20 tokens/s, 20 tokens/s planned with all 2 slots busy",
        "10 tokens/s, 20 tokens/s planned with all 2 slots busy",
    ]
    assert rows["In the queue"] == ["500 ms", "2 s"]
    assert rows["Hand-over"] == ["100 ms", "100 ms"]
    assert rows["First decode step"] == ["500 ms", "500 ms"]
    assert rows["Time to the first token"] == ["1.5 s, p95 1.5 s", "3 s, p95 3 s"]
    assert rows["Failed or cut off"] == ["0 (0 %)", "2 (20 %)"]


@pytest.mark.django_db
def test_a_prefill_replica_is_compared_by_its_prompts(
    admin_client: Client, deployment: Deployment, pair: tuple[Replica, Replica]
) -> None:
    prefill = deployment.replicas.get(role="prefill")
    rows = cells(admin_client, f"/traffic/replicas/?left={prefill.pk}&right={pair[0].pk}&range=1h")
    assert rows["Prompt tokens/s"] == ["measured 200 tokens/s, planned 200 tokens/s: as predicted", "–"]
    assert rows["Requests"] == ["20", "10"]
    text = admin_client.get(f"/traffic/replicas/?left={prefill.pk}&right={pair[0].pk}&range=1h").text
    assert "they say nothing about which of the two is faster" in text


@pytest.mark.django_db
def test_tokens_a_second_count_the_time_since_the_replica_was_started(
    admin_client: Client, pair: tuple[Replica, Replica]
) -> None:
    Replica.objects.filter(pk=pair[0].pk).update(ready_at=timezone.now() - timedelta(seconds=420))
    address = f"/traffic/replicas/?left={pair[0].pk}&right={pair[1].pk}&range=1h"
    left, right = cells(admin_client, address)["Tokens sent, and a second while it was up"]
    assert left == "210, 0.5 tokens/s"
    assert right == "210, 0.0583 tokens/s"


def test_a_speed_of_several_times_the_plan_is_told_as_a_factor() -> None:
    assert against_plan(12_000.0, 3_900.0) == "3.1 times as fast"
    assert against_plan(4_400.0, 4_000.0) == "10 % above"


@pytest.mark.django_db
def test_a_week_of_two_replicas_reads_as_an_hour_does(
    admin_client: Client, pair: tuple[Replica, Replica]
) -> None:
    address = f"/traffic/replicas/?left={pair[0].pk}&right={pair[1].pk}&range="
    hour = cells(admin_client, address + "1h")
    roll_ups.roll_up()
    roll_ups.roll_up()
    week = cells(admin_client, address + "7d")
    del hour["Tokens sent, and a second while it was up"], week["Tokens sent, and a second while it was up"]
    assert week == hour


@pytest.mark.django_db
def test_without_a_choice_two_of_one_role_are_shown(
    admin_client: Client, pair: tuple[Replica, Replica]
) -> None:
    text = admin_client.get("/traffic/replicas/").content.decode()
    assert re.findall(r'<option value="(\d+)" selected>', text) == [str(one.pk) for one in pair]


@pytest.mark.django_db
@pytest.mark.parametrize(
    "query", ["left=999999999999999999999", "left=x&right=-1", "range=2y", "left=7&right=7"]
)
def test_strange_choices_show_the_page(
    admin_client: Client, pair: tuple[Replica, Replica], query: str
) -> None:
    assert admin_client.get(f"/traffic/replicas/?{query}").status_code == 200


@pytest.mark.django_db
def test_without_two_replicas_the_page_says_what_it_needs(admin_client: Client) -> None:
    assert "two replicas" in admin_client.get("/traffic/replicas/").content.decode()


@pytest.mark.django_db(transaction=True)
def test_only_an_operator_chooses_the_replica(
    admin_client: Client, viewer_client: Client, pair: tuple[Replica, Replica]
) -> None:
    assert f'value="{pair[0].pk}"' in admin_client.get("/playground/compare/").content.decode()
    assert "Answered by" not in viewer_client.get("/playground/compare/").content.decode()
    body = {"model": "tiny", "replica": pair[0].pk, "messages": [{"role": "user", "content": "Hi"}]}
    answer = viewer_client.post("/playground/ask/", body, content_type="application/json")
    assert (answer.status_code, "operator" in answer.json()["error"]["message"]) == (400, True)


@pytest.fixture
def page(browser: Browser, live_server: LiveServer, admin: User) -> Iterator[Page]:
    opened = open_page(browser, live_server, admin, "phone", "light")
    yield opened
    opened.context.close()


@pytest.mark.browser
@pytest.mark.django_db(transaction=True)
def test_both_are_seen_at_once_on_a_phone_and_asked_the_same(
    page: Page, live_server: LiveServer, pair: tuple[Replica, Replica]
) -> None:
    page.goto(f"{live_server.url}/traffic/replicas/?left={pair[0].pk}&right={pair[1].pk}&range=1h")
    page.locator("#chart-split").scroll_into_view_if_needed()
    expect(page.locator("#chart-split .is-drawn")).to_be_visible(timeout=30_000)
    edges = [page.get_by_role("columnheader", name=one.label).bounding_box() for one in pair]
    assert all(edge and edge["x"] + edge["width"] <= 390 for edge in edges), edges
    assert faults(page) == []
    asked: list[dict[str, object]] = []

    def answer(route: Route) -> None:
        asked.append(json.loads(route.request.post_data or ""))
        route.fulfill(content_type="text/event-stream", body=ANSWER)

    page.route("**/playground/ask/", answer)
    page.get_by_role("link", name="Ask both the same").click()
    page.fill("[name=text]", "Hello?")
    page.click("[data-send]")
    expect(page.locator(".bubble-assistant .bubble-text")).to_have_text(["Hello.", "Hello."])
    assert {question["replica"] for question in asked} == {one.pk for one in pair}
    assert faults(page) == []

"""The plan pages in a real browser: live search, what-if, and readable by everybody."""

from __future__ import annotations

import json
import re
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from playwright.sync_api import Browser, BrowserContext, Page, expect

from accounts.models import User
from inventory.models import Device, LanguageModel
from jobs import events
from jobs.models import Job, State
from planner import runner, services
from planner.core.errors import NoFeasiblePlan
from planner.core.problem import Problem
from planner.core.search import SearchSettings, find_plan
from planner.models import PlanRun
from tests.conftest import wait_until
from tests.e2llm_web.test_accessibility import LOOKS, SCREENS, complaints, faults
from tests.planner_app.conftest import many_devices

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
PATIENCE_MS = 60_000
LIMIT = re.compile("What (limits this plan|would limit this plan first)")
expect.set_options(timeout=PATIENCE_MS)


def logged_in(browser: Browser, address: str, user: User, **options: Any) -> BrowserContext:
    client = Client()
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    context = browser.new_context(**options)
    context.set_default_timeout(PATIENCE_MS)
    context.add_cookies([{"name": "sessionid", "value": client.cookies["sessionid"].value, "url": address}])
    return context


def start_from_file(page: Page, address: str, cluster: dict[str, Any], folder: Path, method: str) -> None:
    path = folder / "lab.cluster.json"
    path.write_text(json.dumps(cluster))
    page.goto(f"{address}/plans/file/")
    page.set_input_files("#id_cluster", path)
    page.select_option("#id_method", method)
    page.click("text=Plan with the file")


def generation(page: Page) -> int:
    text = page.inner_text("[data-run-generation]")
    return int(text) if text.isdigit() else 0


@pytest.mark.usefixtures("worker")
def test_from_a_search_that_is_watched_to_a_plan_that_changes_with_its_inputs(
    browser: Browser, web: str, operator: User, tmp_path: Path
) -> None:
    context = logged_in(browser, web, operator)
    page, other = context.new_page(), context.new_page()
    errors = complaints(page)
    start_from_file(page, web, many_devices(30), tmp_path, "ga")
    wait_until(lambda: generation(page) > 2, "generations arrive")
    expect(page.locator("#best-plan .stage").first).to_be_visible()
    before = generation(page)
    page.reload()
    wait_until(lambda: generation(page) > before, "the search goes on after the reload")
    drawn = page.evaluate("document.querySelector('#convergence').figure.data[0].x")
    assert drawn == sorted(set(drawn))
    assert drawn[0] == 1 and drawn[-1] > before

    start_from_file(other, web, many_devices(24), tmp_path, "ga")
    wait_until(lambda: generation(other) > 0, "the second search is under way")
    other.click("[data-job-cancel] button")
    other.click("#ask [data-ask-verb]")
    expect(other.get_by_text("The search did not finish: cancelled")).to_be_visible()

    bottleneck = page.locator(".bottleneck-note").filter(has_text=LIMIT)
    expect(bottleneck).to_be_visible()
    assert len(bottleneck.inner_text()) > len("What would limit this plan first. A sentence.")
    page.fill("#id_arrival_seconds", "0.02")
    waits = page.locator("#what-if-result tr", has_text="Longest wait").locator("td")
    expect(page.locator("#what-if-result tr", has_text="A request every")).to_contain_text("20 ms")
    assert waits.nth(0).inner_text() != waits.nth(1).inner_text()
    expect(page.locator("#what-if-result .stage").first).to_be_visible()
    assert errors == []


@pytest.mark.usefixtures("worker")
def test_a_plan_says_what_binds_and_what_if_changes_it(
    browser: Browser, web: str, operator: User, small_cluster: dict[str, Any], tmp_path: Path
) -> None:
    page = logged_in(browser, web, operator).new_page()
    start_from_file(page, web, small_cluster, tmp_path, "auto")
    expect(page.locator(".bottleneck-note")).to_contain_text(LIMIT)
    page.fill("#id_arrival_seconds", "20")
    page.press("#id_arrival_seconds", "Tab")
    row = page.locator("#what-if-result tr", has_text="A request every")
    expect(row).to_contain_text("20 s")
    page.press("#id_arrival_seconds", "Enter")
    expect(page.locator("#what-if-verdict")).to_contain_text("Longest wait")
    page.get_by_label("one more like Dev.1").check()
    expect(page.locator("#what-if-result")).to_contain_text("Dev.1 no. 2 does not exist")
    assert faults(page) == []
    page.fill("#id_min_tokens_per_second", "9000")
    page.press("#id_min_tokens_per_second", "Tab")
    expect(page.locator("#what-if-result")).to_contain_text("No plan could hold these limits")
    field = page.locator("#id_output_tokens")
    for text, told in (("0", "Use at least 1."), ("", "Enter a whole number from 1 to 1,000,000.")):
        field.fill(text)
        field.press("Tab")
        expect(page.locator("#id_output_tokens_error")).to_have_text(told)
        expect(field).to_have_attribute("aria-invalid", "true")
        expect(field).to_have_attribute("aria-describedby", "id_output_tokens_error")
        expect(page.locator("#what-if-verdict")).to_contain_text(told)
        expect(page.locator("#what-if-result > *")).to_have_count(0)
    assert faults(page) == []
    field.fill("500")
    field.press("Tab")
    expect(page.locator("#what-if-result")).to_contain_text("No plan could hold these limits")
    expect(page.locator("#id_output_tokens_error")).to_be_empty()
    expect(field).not_to_have_attribute("aria-invalid", "true")
    page.click("text=Back to those of this plan")
    expect(page.locator("#what-if-result")).to_be_empty()
    expect(page.locator("#what-if-verdict")).to_have_text("Nothing is changed")
    slider = page.get_by_label("Seconds between requests, from a tenth to ten times")
    slider.press("End")
    expect(row).to_contain_text("10 s")
    assert PlanRun.objects.count() == 1
    page.click("text=Use these inputs for a new plan")
    expect(page.locator("tr", has_text="A request every")).to_contain_text("10 s")
    assert PlanRun.objects.count() == 2


def test_a_job_that_falls_silent_says_so_until_it_is_heard_again(
    browser: Browser, web: str, operator: User
) -> None:
    job = Job.objects.create(
        kind="x", label="Search", state=State.RUNNING, heartbeat_at=timezone.now(), remaining_seconds=2.2
    )
    page = logged_in(browser, web, operator).new_page()
    page.goto(f"{web}/jobs/{job.pk}/")
    expect(page.get_by_text("left", exact=False).and_(page.locator("[data-job-remaining]"))).to_be_visible()
    expect(page.locator("[data-job-silent]")).to_be_visible()
    expect(page.locator("[data-job-silent]")).to_contain_text("No sign of life for")
    expect(page.locator("[data-job-remaining]")).to_be_hidden()
    beat = [{"type": "beat", "seq": job.seq + 1}]
    worker = Thread(
        target=events.publish, args=(job.pk, beat)
    )  # Playwright's event loop lives in this thread
    worker.start()
    worker.join()
    expect(page.locator("[data-job-silent]")).to_be_hidden()


@pytest.fixture
def runs(operator: User, small_cluster: dict[str, Any]) -> list[PlanRun]:
    """Two finished runs, one that waits, and one without a plan."""
    finished = services.start_run(small_cluster, "auto", 1, operator)
    runner.execute(finished.job_id)
    waiting = services.start_run(small_cluster, "auto", 2, operator)
    impossible = {**small_cluster, "policy": {**small_cluster["policy"], "min_tokens_per_second": 9e3}}
    refused = services.start_run(impossible, "auto", 3, operator)
    with pytest.raises(NoFeasiblePlan):
        runner.execute(refused.job_id)
    second = services.start_run(small_cluster, "ga", 4, operator)
    runner.execute(second.job_id)
    return [finished, second, waiting, refused]


def test_a_rejected_form_takes_the_focus_to_what_is_wrong(
    browser: Browser, web: str, operator: User, model: LanguageModel, devices: list[Device]
) -> None:
    page = logged_in(browser, web, operator).new_page()
    page.goto(f"{web}/plans/new/")
    page.fill("#id_context_tokens", "64")
    page.click("text=Find the best plan")
    expect(page.locator("#error-summary")).to_be_focused()
    assert faults(page) == []
    page.click("#error-summary a")
    expect(page.locator("#id_context_tokens")).to_be_focused()


def test_no_stage_of_a_large_plan_is_narrower_than_its_text(
    browser: Browser, web: str, operator: User
) -> None:
    run = services.start_run(many_devices(40), "ga", 1, operator)
    settings = SearchSettings("ga", generations=2, compare=False)
    run.plan = find_plan(Problem.from_dict(run.cluster), settings).to_dict()
    run.save()
    Job.objects.filter(pk=run.job_id).update(state=State.SUCCEEDED)
    page = logged_in(browser, web, operator, viewport={"width": 1280, "height": 800}).new_page()
    page.goto(f"{web}/plans/{run.pk}/")
    wide = "[...document.querySelectorAll('.stage')].filter((s) => s.scrollWidth > s.clientWidth + 1).length"
    assert page.locator(".stage .meter-text").count() > 10
    assert page.evaluate(wide) == 0


def test_no_stage_is_cut_on_a_phone(browser: Browser, web: str, operator: User, runs: list[PlanRun]) -> None:
    page = logged_in(browser, web, operator, viewport=SCREENS["phone"]).new_page()
    page.goto(f"{web}/plans/{runs[0].pk}/")
    stages = page.locator(".stage")
    boxes = [stages.nth(index).bounding_box() for index in range(stages.count())]
    assert len(boxes) > 1
    assert all(box is not None and box["x"] >= 0 and box["x"] + box["width"] <= 390 for box in boxes)
    assert page.evaluate(
        "[...document.querySelectorAll('.pipeline')].every((p) => p.scrollWidth <= p.clientWidth)"
    )


def test_two_plans_are_compared_on_a_phone_and_a_tablet(
    browser: Browser, web: str, operator: User, runs: list[PlanRun]
) -> None:
    page = logged_in(browser, web, operator).new_page()
    for width in (390, 768):
        page.set_viewport_size({"width": width, "height": 800})
        page.goto(f"{web}/plans/compare/?run={runs[0].pk}&run={runs[1].pk}")
        row = page.get_by_role("row").filter(has_text="Most slots")
        row.scroll_into_view_if_needed()
        boxes = [row.get_by_role("cell").nth(side).bounding_box() for side in (0, 1)]
        assert all(box and box["width"] > 100 and box["x"] + box["width"] <= width for box in boxes)
        for run in runs[:2]:
            expect(page.get_by_role("columnheader").filter(has_text=f"#{run.pk} ")).to_be_in_viewport()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.locator(".versus > section").first.locator(".stage").last.scroll_into_view_if_needed()
        expect(page.locator(".versus-label").first).to_be_in_viewport()


@pytest.mark.parametrize(("screen", "theme"), LOOKS)
def test_every_plan_page_is_readable_by_everybody(
    browser: Browser,
    web: str,
    operator: User,
    runs: list[PlanRun],
    model: LanguageModel,
    devices: list[Device],
    screen: str,
    theme: Any,
) -> None:
    context = logged_in(browser, web, operator, viewport=SCREENS[screen], color_scheme=theme, bypass_csp=True)
    page = context.new_page()
    errors = complaints(page)
    addresses = [f"/plans/{run.pk}/" for run in runs]
    addresses += ["/plans/", "/plans/new/", "/plans/file/", "/workload/", f"/plans/{runs[0].pk}/change/"]
    addresses.append(f"/plans/compare/?run={runs[0].pk}&run={runs[1].pk}")
    found = {}
    for path in addresses:
        page.goto(web + path, wait_until="load")
        found[path] = faults(page)
    assert {path: texts for path, texts in found.items() if texts} == {}
    assert errors == []


def test_long_names_widen_no_plan_page(
    browser: Browser, web: str, operator: User, small_cluster: dict[str, Any]
) -> None:
    for entry in small_cluster["devices"]:
        entry["name"] = (entry["name"] + "-" + "x" * 100)[:100]
        entry["hardware"] = "y" * 100
    small_cluster["model"]["name"] = "z" * 100
    runs = [services.start_run(small_cluster, "auto", seed, operator) for seed in (1, 2, 3)]
    for run in runs[:2]:
        runner.execute(run.job_id)
    page = logged_in(browser, web, operator).new_page()
    addresses = [f"/plans/{run.pk}/" for run in runs] + [
        f"/plans/{runs[0].pk}/change/",
        "/plans/",
        "/workload/",
    ]
    addresses.append(f"/plans/compare/?run={runs[0].pk}&run={runs[1].pk}")
    found = {}
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 800})
        for path in addresses:
            page.goto(web + path, wait_until="load")
            if page.locator("#what-if-form").count():
                page.fill("#id_arrival_seconds", "9")
                expect(page.locator("#what-if-result .stage").first).to_be_visible()
                page.get_by_role("button", name="Work it out").click()
                expect(page.locator("#worth table")).to_be_visible()
            found[path, width] = page.evaluate("document.documentElement.scrollWidth")
    assert {where: wide for where, wide in found.items() if wide > where[1]} == {}


def test_the_end_of_a_search_leads_to_its_result_before_that_has_loaded(
    browser: Browser, web: str, operator: User, small_cluster: dict[str, Any]
) -> None:
    run = services.start_run(small_cluster, "auto", 1, operator)
    page = logged_in(browser, web, operator).new_page()
    page.goto(f"{web}/plans/{run.pk}/")
    expect(page.locator("#best-plan")).to_contain_text("No plan yet")
    page.route(f"{web}/plans/{run.pk}/", lambda route: route.fulfill(status=204))  # the page stays
    worker = Thread(target=runner.execute, args=(run.job_id,))
    worker.start()
    worker.join()
    expect(page.get_by_role("link", name="Open its result")).to_be_visible()
    expect(page.get_by_text("No plan yet")).to_be_hidden()

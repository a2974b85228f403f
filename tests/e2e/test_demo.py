"""`up --demo` as a newcomer starts it, under kill -9, stopped and started again."""

import json
import os
import signal
from typing import Any

import pytest

from demo.hosts import DemoHost
from tests.conftest import wait_until
from tests.e2e import traces
from tests.e2e.conftest import demo_has_ended
from tests.e2e.visitor import Visitor, words
from tests.planner_app.conftest import many_devices
from tests.running_site import MARKS, Site

pytestmark = pytest.mark.whole
LAST_LINE = "| playground answers\n"


def test_one_command_reaches_an_answer(demo_site: Site) -> None:
    assert LAST_LINE in demo_site.output, demo_site.output
    assert "hand-over: hit" in demo_site.output


def test_home_shows_what_runs(demo_visitor: Visitor) -> None:
    page = words(demo_visitor.open("/"))
    assert "SmolLM2-135M-Instruct" in page
    assert "Open playground" in page


def test_playground_streams_an_answer_to_the_browser(demo_site: Site, demo_visitor: Visitor) -> None:
    assert "hello" in said(demo_site, demo_visitor, "Say hello in one short sentence.").lower()


def test_killed_parts_come_back_while_a_plan_is_searched_and_replicas_go_on(
    demo_site: Site, demo_visitor: Visitor, demo_lab: list[DemoHost]
) -> None:
    replicas = traces.replicas(demo_lab)
    assert len(replicas) == 3
    run = start_long_search(demo_visitor)
    for part in MARKS:
        kill(demo_site, part)
    assert demo_visitor.finished_job("planner.execute_run") == ""
    assert "Replicas" in words(demo_visitor.open(f"/plans/{run}/"))
    assert traces.replicas(demo_lab) == replicas
    assert said(demo_site, demo_visitor, "What is 2 + 2?")


def test_a_second_start_adopts_what_runs_and_answers_again(demo_site: Site, demo_lab: list[DemoHost]) -> None:
    running = traces.replicas(demo_lab)
    assert len(running) == 3
    assert demo_site.interrupt() == 0
    assert traces.replicas(demo_lab) == running
    demo_site.start()
    wait_until(lambda: demo_has_ended(demo_site), "the demo answers again", seconds=120)
    assert LAST_LINE in demo_site.output, demo_site.output
    assert traces.replicas(demo_lab) == running
    assert demo_site.rows("SELECT count(*) FROM inventory_device") == [(3,)]
    assert demo_site.rows("SELECT count(*) FROM serving_deployment") == [(1,)]


def kill(site: Site, part: str) -> None:
    """Kill one process of the product and wait until its successor answers."""
    old = site.pid_of(part)
    assert old is not None
    os.kill(old, signal.SIGKILL)
    wait_until(lambda: site.pid_of(part) not in {None, old}, f"{part} is started again")
    wait_until(lambda: site.answers(part), f"{part} answers again", seconds=60)


def start_long_search(visitor: Visitor) -> str:
    """A search that takes long enough for every part to be killed in it; the id of its run."""
    cluster = {"cluster": ("cluster.json", json.dumps(many_devices(24)))}
    page = visitor.send("/plans/file/", {"method": "ga", "seed": 1}, files=cluster)
    assert page.status_code == 200, words(page)
    return page.url.path.split("/")[2]


def said(site: Site, visitor: Visitor, question: str) -> str:
    """What the playground streams for a question."""
    [(model,)] = site.rows("SELECT name FROM serving_deployment")
    body = {"model": model, "messages": [{"role": "user", "content": question}]}
    answer = visitor.send_json("/playground/ask/", body | {"temperature": 0, "max_tokens": 40})
    assert answer.status_code == 200, answer.text
    return "".join(piece(line) for line in answer.text.splitlines() if line.startswith("data: {"))


def piece(line: str) -> str:
    event: dict[str, Any] = json.loads(line.removeprefix("data: "))
    return "".join(choice["delta"].get("content") or "" for choice in event.get("choices", []))

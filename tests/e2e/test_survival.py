"""kill -9 of one part after the other during a search: what the rows, the pages and the hosts say afterwards."""

from __future__ import annotations

import json
import os
import re
import signal
from dataclasses import dataclass

import httpx
import pytest

from demo.hosts import DemoHost
from tests.conftest import wait_until
from tests.e2e import traces
from tests.e2e.visitor import FINISHED, JOB_SECONDS, Visitor
from tests.planner_app.conftest import children_of, many_devices
from tests.running_site import Site

pytestmark = pytest.mark.whole
QUESTION = [{"role": "user", "content": "What is 2 + 2?"}]


@dataclass
class Search:
    """A run of the planner as its row and its pages tell of it."""

    site: Site
    visitor: Visitor
    run: int
    job: int

    def row(self) -> tuple[str, int]:
        """State and attempts."""
        [(state, attempts)] = self.site.rows("SELECT state, attempts FROM jobs_job WHERE id = ?", self.job)
        return str(state), int(attempts)

    def generations(self) -> int:
        query = "SELECT count(*) FROM planner_generation WHERE run_id = ?"
        return int(self.site.rows(query, self.run)[0][0])

    def has_checkpoint(self) -> bool:
        query = "SELECT count(checkpoint) FROM planner_planrun WHERE id = ?"
        return self.site.rows(query, self.run) == [(1,)]

    def first_generation(self) -> int:
        """Number of the row; a search from the beginning makes new ones."""
        query = "SELECT min(id) FROM planner_generation WHERE run_id = ?"
        return int(self.site.rows(query, self.run)[0][0])

    def page_state(self) -> str:
        """What the job's page says, read while the row stood still."""
        for _ in range(20):
            before = self.row()
            found = re.search(r'data-job .*?data-state="(\w+)"', self.visitor.open(f"/jobs/{self.job}/").text)
            assert found is not None
            if self.row() == before:
                return found[1]
        raise AssertionError("the job's state changes with every look")

    def has_ended(self) -> bool:
        return self.row()[0] in FINISHED


@pytest.fixture
def search(demo_site: Site, demo_visitor: Visitor) -> Search:
    """One that is under way and takes its time."""
    cluster = {"cluster": ("cluster.json", json.dumps(many_devices(16)))}
    page = demo_visitor.send("/plans/file/", {"method": "ga", "seed": 1}, files=cluster)
    run = int(page.url.path.split("/")[2])
    [(job,)] = demo_site.rows("SELECT job_id FROM planner_planrun WHERE id = ?", run)
    found = Search(demo_site, demo_visitor, run, int(job))
    wait_until(lambda: found.generations() > 2, "the search is under way", seconds=180)
    return found


@pytest.fixture(scope="module")
def api_key(demo_visitor: Visitor) -> str:
    return demo_visitor.api_key()


def restarts(site: Site, part: str) -> int:
    return site.output.count(f"{part} ended with signal SIGKILL; starting it again")


def kill(site: Site, part: str) -> None:
    """Returns when the successor answers."""
    noted, pid = restarts(site, part), site.pid_of(part)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(
        lambda: restarts(site, part) == noted + 1, f"the restart of {part} is written down", seconds=90
    )
    wait_until(lambda: site.pid_of(part) not in {None, pid}, f"{part} is there again", seconds=90)
    wait_until(lambda: site.answers(part), f"{part} answers again", seconds=180)


def answers(site: Site, api_key: str) -> bool:
    """Whether a program gets an answer from the gateway."""
    base = f"http://127.0.0.1:{site.gateway_port}/v1"
    [(model,)] = site.rows("SELECT name FROM serving_deployment")
    body = {"model": model, "messages": QUESTION, "max_tokens": 8}
    headers = {"Authorization": f"Bearer {api_key}"}
    try:
        answer = httpx.post(f"{base}/chat/completions", json=body, headers=headers, timeout=60)
    except httpx.TransportError:
        return False
    return answer.status_code == 200 and bool(answer.json()["choices"][0]["message"]["content"])


@pytest.mark.parametrize("part", ["redis", "worker", "web", "gateway"])
def test_a_killed_part_costs_neither_the_search_nor_a_replica(
    part: str, search: Search, demo_lab: list[DemoHost], api_key: str
) -> None:
    site, replicas = search.site, traces.replicas(demo_lab)
    assert replicas
    kill(site, part)
    assert search.page_state() == search.row()[0]
    wait_until(search.has_ended, "the search ends", seconds=JOB_SECONDS)
    state, attempts = search.row()
    assert state == search.page_state() == "succeeded"
    assert (attempts > 1) == (part == "worker"), "only a lost worker costs a second try"
    assert traces.replicas(demo_lab) == replicas
    assert site.rows("SELECT sum(restarts) FROM serving_replica") == [(0,)]
    wait_until(lambda: answers(site, api_key), "the gateway answers", seconds=180)


def test_a_search_goes_on_after_all_processes_of_its_worker_were_killed_with_the_clock(
    search: Search,
) -> None:
    site = search.site
    wait_until(search.has_checkpoint, "it can be taken up again")
    noted, worker, beat = restarts(site, "beat"), site.pid_of("worker"), site.pid_of("beat")
    assert worker is not None and beat is not None
    first = search.first_generation()
    for pid in [beat, *children_of(worker)]:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: restarts(site, "beat") == noted + 1, "beat is started again")
    wait_until(search.has_ended, "the search ends", seconds=JOB_SECONDS)
    assert search.row() == ("succeeded", 2)
    assert search.first_generation() == first, "it went on from its checkpoint"
    assert site.pid_of("worker") == worker, "only its processes were killed"

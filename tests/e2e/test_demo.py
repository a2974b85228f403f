"""`up --demo` as a newcomer starts it, stopped and started again."""

import json
from pathlib import Path
from typing import Any

import pytest

from demo import llamacpp
from demo.hosts import DemoHost
from tests.conftest import wait_until
from tests.e2e import traces
from tests.e2e.conftest import demo_has_ended
from tests.e2e.visitor import Visitor, words
from tests.running_site import Site, free_port

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


def test_without_a_llama_that_runs_here_the_start_ends_and_names_every_way(tmp_path: Path) -> None:
    """A processor that the ready build is too new for, on a machine without compilers."""
    site = Site(tmp_path / "site", free_port(), free_port(), ("--demo",))
    for name in ("llama-server", "ggml-rpc-server"):
        program = site.data / "demo" / "llama.cpp" / f"packaged-{llamacpp.PACKAGE.version}" / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text("#!/bin/sh\nkill -ILL $$\n")
        program.chmod(0o755)
    refused = site.try_start({"PATH": str(tmp_path)})
    assert refused.returncode == 1
    for part in (
        "demo cannot work here",
        "PATH has no llama-server",
        "newer processor",
        "cmake and g++",
        "Remedy",
    ):
        assert part in refused.stderr, refused.stdout + refused.stderr

"""From a registered device to a chat answer, on real parts only and through the pages."""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncssh
import httpx
import openai
import pytest

from demo.hosts import DemoHost
from tests.conftest import wait_until
from tests.e2e import traces
from tests.e2e.visitor import Visitor, words
from tests.running_site import Site, free_port

pytestmark = pytest.mark.whole
# One copy of the model takes 160 MB: one host holds it alone, the other two only together.
USABLE_GB = {"box-1": 0.9, "box-2": 0.15, "box-3": 0.15}
QUESTION = "Write three sentences about how a bicycle stays upright."
MESSAGES = [{"role": "user", "content": QUESTION}]


@dataclass
class Deployed:
    """A deployment as the site's database holds it, with the processes that it started."""

    number: int
    model: str
    plan: dict[str, Any]
    processes: list[tuple[str, str, int]]  # kind, marker, port


@dataclass
class Told:
    text: str
    prompt_tokens: int
    cached_tokens: int


@pytest.fixture(scope="module")
def registered(visitor: Visitor, site: Site, lab: list[DemoHost]) -> dict[str, int]:
    """Device name -> id, after each was added with its password and probed."""
    for host in lab:
        page = visitor.add_device(host)
        assert page.url.path.startswith("/devices/"), words(page)
        assert visitor.finished_job("inventory.probe_device") == ""
    return dict(site.rows("SELECT name, id FROM inventory_device"))


@pytest.fixture(scope="module")
def measured(visitor: Visitor, site: Site, registered: dict[str, int]) -> int:
    """The id of the model, after links, model files and profiles are known."""
    for name, device in registered.items():
        typed = {"main_gb": USABLE_GB[name], "reason": "one machine stands for three"}
        visitor.send(f"/devices/{device}/memory/", typed, page=visitor.open(f"/devices/{device}/"))
    visitor.send("/links/measure/", page=visitor.open("/links/"))
    assert visitor.finished_job("inventory.measure_links") == ""
    visitor.send("/models/scan/", page=visitor.open("/models/"))
    assert visitor.finished_job("inventory.scan_models") == ""
    [(model,)] = site.rows("SELECT id FROM inventory_languagemodel")
    chosen = {"model": model, "devices": list(registered.values()), "thoroughness": "quick"}
    visitor.send("/profiles/start/", chosen, page=visitor.open("/profiles/"))
    assert visitor.finished_job("inventory.profile_devices") == ""
    return int(model)


@pytest.fixture(scope="module")
def deployed(visitor: Visitor, site: Site, registered: dict[str, int], measured: int) -> Deployed:
    chosen = {
        "model": measured,
        "devices": list(registered.values()),
        "method": "ga",
        "runtime": "serial",
        "seed": 1,
        "input_tokens": 128,
        "output_tokens": 256,
        "context_tokens": 2048,
        "arrival_seconds": 2,
        "requests": 20,
        "min_tokens_per_second": 0.5,
        "max_slots": 4,
    }
    page = visitor.send("/plans/new/", chosen)
    assert page.status_code == 200, words(page)
    assert visitor.finished_job("planner.execute_run") == ""
    [(run,)] = site.rows("SELECT id FROM planner_planrun")
    visitor.send("/deployments/deploy/", {"plan_run": run}, page=visitor.open(f"/plans/{run}/"))
    assert visitor.finished_job("serving.operate") == ""
    [(number, model, plan, state)] = site.rows("SELECT id, name, plan, state FROM serving_deployment")
    assert state == "running"
    processes = site.rows("SELECT kind, marker, port FROM serving_managedprocess")
    return Deployed(
        number, model, json.loads(plan), [(kind, marker, port) for kind, marker, port in processes]
    )


@pytest.fixture(scope="module")
def client(visitor: Visitor, site: Site, deployed: Deployed) -> openai.OpenAI:
    client = openai.OpenAI(
        base_url=f"http://127.0.0.1:{site.gateway_port}/v1", api_key=visitor.api_key(), max_retries=0
    )
    wait_until(lambda: knows(client, deployed.model), "the gateway knows the key and the deployment")
    return client


@pytest.fixture(scope="module")
def plain_server(llama_server: Path, small_model: Path) -> Iterator[openai.OpenAI]:
    """One llama-server with the same model and nothing of ours."""
    port = free_port()
    argv = [
        llama_server,
        "--model",
        small_model,
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "-c",
        "1024",
        "-t",
        "1",
    ]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: is_healthy(port), "the plain llama-server has loaded", seconds=60)
        yield openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)
    finally:
        process.kill()
        process.wait()


def knows(client: openai.OpenAI, model: str) -> bool:
    try:
        return model in [card.id for card in client.models.list().data]
    except openai.APIStatusError:
        return False


def is_healthy(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health", timeout=2).status_code == 200
    except httpx.HTTPError:
        return False


def chat(client: openai.OpenAI, model: str) -> Told:
    """One streamed answer at temperature 0."""
    told = Told("", 0, 0)
    stream = client.chat.completions.create(
        model=model,
        messages=MESSAGES,
        temperature=0,
        max_tokens=60,
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in stream:
        for choice in chunk.choices:
            told.text += choice.delta.content or ""
        if chunk.usage is not None:
            told.prompt_tokens = chunk.usage.prompt_tokens
            details = chunk.usage.prompt_tokens_details
            told.cached_tokens = (details.cached_tokens or 0) if details else 0
    return told


def test_the_fingerprint_is_shown_before_a_device_is_added_and_pinned_after(
    site: Site, registered: dict[str, int], lab: list[DemoHost]
) -> None:
    pinned = dict(site.rows("SELECT name, host_key FROM inventory_device"))
    for host in lab:
        shown = asyncssh.import_public_key(pinned[host.name]).get_fingerprint()
        assert shown == asyncssh.import_public_key(host.public_key).get_fingerprint()


def test_no_password_is_kept(site: Site, registered: dict[str, int], lab: list[DemoHost]) -> None:
    kept = b"".join(path.read_bytes() for path in site.data.glob("e2llm.sqlite3*"))
    assert not [host.name for host in lab if host.password.encode() in kept]


def test_the_plan_has_a_replica_on_one_host_and_one_across_two(deployed: Deployed) -> None:
    replicas = deployed.plan["replicas"]
    assert deployed.plan["mode"] == "disaggregated"
    assert sorted(replica["role"] for replica in replicas) == ["decode", "prefill"]
    assert sorted(len(replica["stages"]) for replica in replicas) == [1, 2]
    assert sorted(kind for kind, _, _ in deployed.processes) == ["master", "master", "worker"]


def test_streamed_answer_equals_that_of_one_plain_server(
    client: openai.OpenAI, plain_server: openai.OpenAI, deployed: Deployed
) -> None:
    told = chat(client, deployed.model)
    assert told.text == chat(plain_server, "any").text
    assert len(told.text) > 40


def test_the_prompt_is_handed_over_and_not_computed_again(
    client: openai.OpenAI, site: Site, deployed: Deployed
) -> None:
    told = chat(client, deployed.model)
    assert told.prompt_tokens > 10
    assert told.cached_tokens < told.prompt_tokens
    query = "SELECT DISTINCT handover FROM serving_requestsample WHERE outcome != 'refused'"
    outcomes = wait_until(lambda: site.rows(query), "the gateway has written its requests down")
    assert outcomes == [("hit",)]


def test_an_unknown_key_is_refused(client: openai.OpenAI, deployed: Deployed) -> None:
    with pytest.raises(openai.AuthenticationError):
        chat(client.with_options(api_key="e2k-wrong"), deployed.model)


def test_stop_leaves_no_process_socket_or_file_of_ours(
    visitor: Visitor, site: Site, lab: list[DemoHost], client: openai.OpenAI, deployed: Deployed
) -> None:
    markers = [marker for _, marker, _ in deployed.processes]
    ports = [port for _, _, port in deployed.processes]
    assert len(traces.replicas(lab)) == 3
    assert len(traces.listening(lab, ports)) == 3
    assert traces.files(lab, markers)
    path = f"/deployments/{deployed.number}/"
    visitor.send(f"{path}stop/", page=visitor.open(path))
    assert visitor.finished_job("serving.operate") == ""
    wait_until(lambda: not traces.replicas(lab), "nothing runs on the hosts")
    assert traces.listening(lab, ports) == set()
    assert traces.files(lab, markers) == []
    assert site.rows("SELECT state FROM serving_deployment") == [("stopped",)]
    wait_until(lambda: not knows(client, deployed.model), "the gateway serves it no more")

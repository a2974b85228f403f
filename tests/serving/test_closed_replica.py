"""A llama-server as we start it: closed to everybody without its key, and without the options that open hosts."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from serving.core.commands import ModelFacts, replica_commands
from serving.core.placement import BadLaunch
from serving.gateway.routes import Endpoint
from tests.serving.test_commands import host, one, stage

PATHS = [
    ("GET", "/props"),
    ("GET", "/slots"),
    ("GET", "/metrics"),
    ("POST", "/completion"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/embeddings"),
    ("POST", "/tokenize"),
    ("POST", "/apply-template"),
    ("POST", "/slots/0?action=save"),
    ("GET", "/"),
]
OPENING = {
    *("--tools", "--agent", "--ui-mcp-proxy", "--mcp-servers", "--media-path", "-hf", "--hf-repo", "-mu"),
    *("--model-url", "--log-prompts-dir", "--api-key", "--ssl-key-file", "--chat-template-file", "--lora"),
    *("--rpc-server", "--webui-mcp-proxy", "--props", "-lora", "--log-file"),
}


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_without_its_key_a_replica_answers_nothing(real_replica: Endpoint, method: str, path: str) -> None:
    target = real_replica.target
    address = f"http://{target.host}:{target.port}{path}"
    assert httpx.request(method, address, json={} if method == "POST" else None).status_code in (401, 404)
    wrong = httpx.request(method, address, headers={"Authorization": "Bearer wrong"})
    assert wrong.status_code in (401, 404)


def test_health_alone_is_public_and_no_foreign_page_may_read(real_replica: Endpoint) -> None:
    target = real_replica.target
    base = f"http://{target.host}:{target.port}"
    evil = {"Origin": "http://evil.example", "Authorization": f"Bearer {target.api_key}"}
    assert httpx.get(f"{base}/health").status_code == 200
    for answer in (httpx.get(f"{base}/props", headers=evil), httpx.get(f"{base}/health", headers=evil)):
        assert "evil" not in answer.headers.get("access-control-allow-origin", "")
        assert answer.headers.get("access-control-allow-origin") != "*"
        assert answer.headers.get("access-control-allow-credentials") != "true"


PLANS: list[dict[str, Any]] = [
    one("mixed", stage("a", 4, master=True)),
    one("mixed", stage("a", 2, master=True), stage("b", 2)),
    one("prefill", stage("a", 2, master=True), stage("b", 2)),
    one("decode", stage("a", 4, master=True)),
]


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("facts", [ModelFacts(4, 512), ModelFacts(4, 512, sliding_window=True)])
def test_no_process_is_started_with_an_option_that_opens_its_host(
    plan: dict[str, Any], facts: ModelFacts
) -> None:
    hosts = {"a": host("a", 1, gpus=1), "b": host("b", 2)}
    (commands,) = replica_commands(plan, facts, hosts)
    for process in commands.processes:
        assert not OPENING & set(process.argv)
        listens = "--host" if process.kind == "master" else "-H"
        assert process.argv[process.argv.index(listens) + 1] == hosts[process.device].address
    master = commands.master.argv
    assert "--offline" in master and master[master.index("--cors-origins") + 1] == "localhost"
    assert master[master.index("--api-key-file") + 1].endswith("/api-key")
    if "--path" in master:  # a prefill replica serves its slot files, behind the key
        assert master[master.index("--path") + 1] == hosts["a"].slot_folder


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "lab-1", "127.0.0.1:80", "10.0.0.1 --tools", ""])
def test_an_address_that_is_none_of_one_interface_is_refused(address: str) -> None:
    with pytest.raises(BadLaunch):
        made = host("a", 1)
        type(made)(**{**vars(made), "address": address})

"""Requests that want more than an answer: another address, another slot, headers for the replica, a redirect."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from serving.core.openai import CHAT_FIELDS, COMPLETION_FIELDS, chat_request, completion_request
from tests.serving.gateway_server import MODEL, Running, endpoint, running_gateway
from tests.serving.stub_replica import Stub

ASK = [{"role": "user", "content": "Say hello"}]
INSIDE = "http://127.0.0.1:{port}/v1"
METADATA = [
    "http://169.254.169.254/latest",
    "http://[::1]:{port}/",
    "http://2130706433:{port}/",
    "file:///etc/passwd",
]
ADDRESS_FIELDS = (
    "api_base",
    "base_url",
    "url",
    "endpoint",
    "proxy",
    "callback",
    "webhook",
    "model_url",
    "hf_repo",
)
LLAMA_FIELDS: dict[str, Any] = {
    "id_slot": 1,
    "slot_id": 1,
    "n_discard": -5,
    "n_keep": -1,
    "cache_prompt": False,
    "lora": [{"id": 0, "scale": 1}],
    "grammar": "root ::= x",
    "json_schema": {},
    "n_probs": 10**6,
    "n_predict": -1,
    "t_max_predict_ms": 1,
    "samplers": ["top_k"],
    "image_data": [{"data": "", "id": 1}],
    "media_path": "/etc",
    "ignore_eos": True,
    "post_sampling_probs": True,
    "return_tokens": True,
    "best_of": 1,
}


class Trap:
    """A server that nobody should reach; it counts who did, and what was said to it."""

    def __init__(self, answer: bytes = b"") -> None:
        self.answer = answer
        self.heads: list[bytes] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(self.answer)
        await writer.drain()
        writer.close()


@asynccontextmanager
async def trapping(answer: bytes = b"") -> AsyncIterator[Trap]:
    trap = Trap(answer)
    server = await asyncio.start_server(trap.serve, "127.0.0.1", 0)
    trap.port = server.sockets[0].getsockname()[1]
    try:
        yield trap
    finally:
        server.close()


async def raw(gateway: Running, head: str, body: dict[str, Any] | None = None) -> tuple[int, bytes]:
    """Status and content of the answer to a request written by hand."""
    content = json.dumps(body or {"model": MODEL, "messages": ASK, "max_tokens": 5}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    lines = [head, "Authorization: Bearer client-key", "Connection: close", f"Content-Length: {len(content)}"]
    writer.write("\r\n".join([*lines, "", ""]).encode() + content)
    answer = await reader.read()
    writer.close()
    return int(answer.split()[1]), answer.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize("address", [INSIDE, *METADATA])
async def test_no_field_of_a_body_leads_the_gateway_to_another_address(stub: Stub, address: str) -> None:
    async with trapping() as trap, running_gateway() as gateway:
        gateway.serve(endpoint(1, stub.port))
        where = address.format(port=trap.port)
        extra = dict.fromkeys(ADDRESS_FIELDS, where)
        status, _ = await raw(
            gateway,
            "POST /v1/chat/completions HTTP/1.1\r\nHost: x",
            {"model": MODEL, "messages": ASK, "max_tokens": 5, **extra, "metadata": extra},
        )
        assert status == 200 and trap.heads == []
        assert where not in json.dumps(stub.bodies)


PLAIN = "POST /v1/chat/completions HTTP/1.1\r\nHost: "
HEADS = [
    "POST http://127.0.0.1:{port}/v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}",
    PLAIN + "127.0.0.1:{port}",
    PLAIN + "x\r\nX-Forwarded-Host: 127.0.0.1:{port}\r\nForwarded: host=127.0.0.1:{port}",
    PLAIN + "x\r\nX-Original-URL: http://127.0.0.1:{port}/\r\nX-Rewrite-URL: /metrics",
]


@pytest.mark.parametrize("head", HEADS)
async def test_no_header_leads_the_gateway_to_another_address(stub: Stub, head: str) -> None:
    async with trapping() as trap, running_gateway() as gateway:
        gateway.serve(endpoint(1, stub.port))
        status, _ = await raw(gateway, head.format(port=trap.port))
        assert trap.heads == []
        assert status == 200 and len(stub.bodies) == 1


async def test_a_picture_is_fetched_from_nowhere(stub: Stub) -> None:
    async with trapping() as trap, running_gateway() as gateway:
        gateway.serve(endpoint(1, stub.port))
        picture = {"type": "image_url", "image_url": {"url": f"http://127.0.0.1:{trap.port}/a.png"}}
        asked = {"model": MODEL, "messages": [{"role": "user", "content": [picture]}]}
        status, content = await raw(gateway, "POST /v1/chat/completions HTTP/1.1\r\nHost: x", asked)
        assert status == 400 and b"text only" in content
        assert trap.heads == [] and stub.bodies == []


async def test_a_redirect_of_a_replica_is_not_followed() -> None:
    async with trapping() as trap:
        away = (
            f"HTTP/1.1 302 X\r\nLocation: http://127.0.0.1:{trap.port}/\r\nContent-Length: 0\r\n\r\n".encode()
        )
        async with trapping(away) as replica, running_gateway() as gateway:
            gateway.serve(endpoint(1, replica.port))
            status, content = await raw(gateway, "POST /v1/chat/completions HTTP/1.1\r\nHost: x")
            assert (status, json.loads(content)["error"]["code"]) == (502, "replica_failed")
            assert len(replica.heads) == 1 and trap.heads == []


async def test_no_header_of_a_client_reaches_a_replica() -> None:
    ours = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: client.example\r\nCookie: sessionid=canary\r\n"
        "X-Forwarded-For: 192.0.2.1\r\nProxy-Authorization: Basic canary\r\nX-Api-Key: canary\r\n"
        "Connection: X-Canary\r\nX-Canary: canary\r\nTE: trailers\r\nTrailer: X-Canary\r\nOrigin: http://canary\r\n"
        "User-Agent: canary\r\nKeep-Alive: timeout=5\r\nRange: bytes=0-1"
    )
    async with (
        trapping(b"HTTP/1.1 500 X\r\nContent-Length: 2\r\n\r\n{}") as replica,
        running_gateway() as gateway,
    ):
        gateway.serve(endpoint(1, replica.port))
        await raw(gateway, ours)
    (head,) = replica.heads
    names = {line.partition(b":")[0].lower() for line in head.splitlines()[1:] if line}
    assert names <= {b"host", b"authorization", b"content-type", b"content-length", b"accept", b"connection"}
    assert b"canary" not in head.lower() and b"client" not in head
    assert b"Bearer secret" in head


@pytest.mark.parametrize(
    ("read", "asked", "fields"),
    [
        (chat_request, {"model": "m", "messages": ASK}, {"messages", *CHAT_FIELDS}),
        (completion_request, {"model": "m", "prompt": "x"}, {"prompt", *COMPLETION_FIELDS}),
    ],
    ids=["chat", "completion"],
)
def test_the_body_for_a_replica_holds_known_fields_only(read: Any, asked: Any, fields: set[str]) -> None:
    extra = {name: value for name, value in LLAMA_FIELDS.items() if name not in fields}
    assert len(extra) == len(LLAMA_FIELDS), "none of them is a field that a client may send"
    body = read({**asked, **extra, "something_new": {"deep": ["value"]}}, 500).body
    assert body.keys() == {"model", *asked}


def test_what_costs_a_replica_much_is_capped() -> None:
    for wanted in (
        {"n": 9},
        {"logprobs": True, "top_logprobs": 21},
        {"stop": ["x"] * 17},
        {"max_tokens": 2**31},
    ):
        with pytest.raises(ValueError):
            chat_request({"model": "m", "messages": ASK, **wanted}, 500)
    large = {"type": "json_schema", "json_schema": {"schema": {"enum": ["x" * 70_000]}}}
    with pytest.raises(ValueError, match="65536 are allowed"):
        chat_request({"model": "m", "messages": ASK, "response_format": large}, 500)

"""Clients that send slowly, endlessly or from too many sockets: they are cut, and the others are served."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from serving.gateway.doorway import CROWDED_MORE
from serving.gateway.limits import Limits
from tests.serving.gateway_server import MODEL, Running, endpoint, running_gateway
from tests.serving.stub_replica import running_stub

ASK = [{"role": "user", "content": "Say hello"}]
HASTY = Limits(header_seconds=0.4, body_seconds=0.4, connections_per_address=6)
PATIENCE_SECONDS = 60.0

Wire = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def gateway() -> AsyncIterator[Running]:
    async with running_stub() as stub, running_gateway(HASTY) as running:
        running.serve(endpoint(1, stub.port))
        yield running


async def open_wire(gateway: Running, begin: bytes = b"", source: str = "127.0.0.1") -> Wire:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port, local_addr=(source, 0))
    writer.write(begin)
    return reader, writer


async def rest(wire: Wire) -> bytes:
    """Everything until the gateway closes the connection."""
    reader, writer = wire
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


async def drip(wire: Wire, piece: bytes) -> None:
    """A piece every now and then, so that the connection is never silent."""
    while not wire[1].is_closing():
        wire[1].write(piece)
        await asyncio.sleep(0.05)


async def dripped(wire: Wire, piece: bytes) -> bytes:
    dripping = asyncio.create_task(drip(wire, piece))
    try:
        return await rest(wire)
    finally:
        dripping.cancel()


HALF_HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
NOT_READ = b"POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"


@pytest.mark.parametrize("begin", [b"", b"GE", HALF_HEAD], ids=["nothing", "two letters", "half a head"])
async def test_a_head_that_stops_is_cut(gateway: Running, begin: bytes) -> None:
    answer = await rest(await open_wire(gateway, begin))
    assert answer.startswith(b"HTTP/1.1 408")
    error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert error["code"] == "headers_timeout" and "0.4 s" in error["message"]


async def test_a_head_that_trickles_is_cut(gateway: Running) -> None:
    assert (await dripped(await open_wire(gateway, HALF_HEAD), b"X-A: b\r\n")).startswith(b"HTTP/1.1 408")


async def test_a_body_that_trickles_is_cut_even_where_nobody_reads_it(
    gateway: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serving.gateway.doorway.BODY_GRACE_SECONDS", 0.1)
    assert (await dripped(await open_wire(gateway, NOT_READ), b"x")).startswith(b"HTTP/1.1 404")


async def test_empty_lines_between_requests_do_not_keep_a_connection(gateway: Running) -> None:
    wire = await open_wire(gateway, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    answer = await dripped(wire, b"\r\n")
    assert answer.startswith(b"HTTP/1.1 200") and answer.count(b"HTTP/1.1 408") == 1


async def test_headers_without_end_are_cut_long_before_their_deadline_or_full_memory() -> None:
    async with running_gateway(Limits(header_seconds=3600.0)) as gateway:
        wire = await open_wire(gateway, HALF_HEAD)
        answer = await dripped(wire, b"X-A: " + b"b" * 60_000 + b"\r\n")
        assert not answer or answer.startswith(b"HTTP/1.1 431")  # a reset may overtake it


async def test_a_stream_and_an_idle_connection_outlive_the_deadline_of_a_head() -> None:
    limits = Limits(header_seconds=0.2, body_seconds=0.2)
    async with (
        running_stub(words=["word"] * 12, pause_seconds=0.1) as stub,
        running_gateway(limits) as gateway,
    ):
        gateway.serve(endpoint(1, stub.port))
        stream = await gateway.openai.chat.completions.create(model=MODEL, messages=ASK, stream=True)
        assert len([chunk async for chunk in stream if chunk.choices[0].delta.content]) == 12
        asked = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
        reader, writer = await open_wire(gateway, asked)
        for _ in range(2):
            assert b"ok" in await reader.readuntil(b"}")
            await asyncio.sleep(0.4)
            writer.write(asked)
        writer.close()


async def test_slow_clients_count_as_connections_of_their_address_and_others_are_served() -> None:
    limits = Limits(connections_per_address=6)
    async with running_stub() as stub, running_gateway(limits) as gateway:
        gateway.serve(endpoint(1, stub.port))
        slow = [await open_wire(gateway, HALF_HEAD, "127.0.0.91") for _ in range(6)]
        asked = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        refused = await rest(await open_wire(gateway, asked, "127.0.0.91"))
        assert refused.startswith(b"HTTP/1.1 429") and b"retry-after: 1\r\n" in refused
        assert json.loads(refused.partition(b"\r\n\r\n")[2])["error"]["code"] == "too_many_connections"
        assert (await rest(await open_wire(gateway, asked, "127.0.0.92"))).startswith(b"HTTP/1.1 200")
        answer = await gateway.openai.chat.completions.create(model=MODEL, messages=ASK)
        assert answer.choices[0].message.content
        for _, writer in slow:
            writer.transport.abort()
        await until_served(gateway, asked, "127.0.0.91")


async def until_served(gateway: Running, asked: bytes, source: str) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not (await rest(await open_wire(gateway, asked, source))).startswith(b"HTTP/1.1 200"):
            await asyncio.sleep(0.05)


async def test_five_hundred_slow_clients_are_cut_and_leave_nothing(gateway: Running) -> None:
    """Most of them are not even listened to."""
    wires = await asyncio.gather(*(open_wire(gateway, HALF_HEAD, "127.0.0.93") for _ in range(500)))
    answer = await gateway.openai.chat.completions.create(model=MODEL, messages=ASK)
    assert answer.choices[0].message.content
    answers = await asyncio.gather(*(rest(wire) for wire in wires))
    told = sum(bool(answer) for answer in answers)
    assert told <= HASTY.connections_per_address + CROWDED_MORE
    assert all(answer.startswith(b"HTTP/1.1 408") for answer in answers if answer)
    await until_served(
        gateway, b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "127.0.0.93"
    )


async def test_an_upgrade_is_answered_as_the_request_it_is(gateway: Running) -> None:
    asked = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    wire = await open_wire(gateway, asked)
    answer: Any = await wire[0].readuntil(b"}")
    assert answer.startswith(b"HTTP/1.1 200")
    wire[1].close()

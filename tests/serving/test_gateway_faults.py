"""What a client sees, and what is not lost, when a replica or the client itself misbehaves."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace

import openai
import pytest

from serving.gateway.limits import Limits
from serving.gateway.timeline import Outcomes
from tests.serving.gateway_server import MODEL, Running, endpoint, running_gateway
from tests.serving.stub_replica import Stub, running_stub

ASK = [{"role": "user", "content": "Say hello to all of us"}]
SHORT = Limits(
    connect_seconds=1.0,
    first_token_seconds=0.4,
    inter_token_seconds=0.4,
    slowest_prefill_tokens_per_second=1e9,
    unconfirmed_seconds=1.0,
)


@pytest.fixture
async def gateway() -> AsyncIterator[Running]:
    async with running_gateway(SHORT) as running:
        yield running


@pytest.fixture
async def other() -> AsyncIterator[Stub]:
    async with running_stub(words=["From", " the", " other"]) as one:
        yield one


async def ask(gateway: Running, text: str = "Say hello to all of us", **options: object) -> str:
    message = [{"role": "user", "content": text}]
    answer = await gateway.openai.chat.completions.create(model=MODEL, messages=message, **options)
    return str(answer.choices[0].message.content)


async def raw_stream(gateway: Running, body: dict[str, object] | None = None) -> str:
    """Everything that a client receives, as text."""
    reader, writer = await start_raw(gateway, body)
    text = (await reader.read()).decode()
    writer.close()
    return text


async def start_raw(
    gateway: Running, body: dict[str, object] | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    content = json.dumps(body or {"model": MODEL, "messages": ASK, "stream": True}).encode()
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k\r\nConnection: close\r\n"
        + f"Content-Length: {len(content)}\r\n\r\n".encode()
        + content
    )
    await writer.drain()
    return reader, writer


async def until(condition: object) -> None:
    assert callable(condition)
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not happen")


@pytest.mark.parametrize("fault", ["cut", "error_event", "stall"])
async def test_a_stream_that_breaks_ends_with_an_error_and_no_done(
    gateway: Running, stub: Stub, fault: str
) -> None:
    stub.fault = fault
    gateway.serve(endpoint(1, stub.port))
    text = await raw_stream(gateway)
    assert '"content":"Hello"' in text
    assert '"code":"stream_interrupted"' in text and "[DONE]" not in text
    assert gateway.last.outcome == Outcomes.CUT
    await gateway.settled()


async def test_pings_do_not_extend_the_deadline_of_a_token(gateway: Running, stub: Stub) -> None:
    stub.fault = "stall"
    gateway.serve(endpoint(1, stub.port))
    text = await raw_stream(gateway)
    assert "no next token within 0.4 s" in text
    await until(lambda: stub.cancelled == 1)


async def test_a_token_that_stays_away_is_due_before_the_first_would_have_been(other: Stub) -> None:
    other.fault = "stall"
    async with running_gateway(replace(SHORT, first_token_seconds=600.0)) as gateway, asyncio.timeout(60):
        gateway.serve(endpoint(7, other.port))
        assert "no next token within 0.4 s" in await raw_stream(gateway)


async def test_the_sdk_raises_on_a_cut_stream(gateway: Running, stub: Stub) -> None:
    stub.fault = "cut"
    gateway.serve(endpoint(1, stub.port))
    stream = await gateway.openai.chat.completions.create(model=MODEL, messages=ASK, stream=True)
    with pytest.raises(openai.APIError):
        async for _ in stream:
            pass


async def test_a_refused_connection_is_retried_elsewhere(gateway: Running, stub: Stub, other: Stub) -> None:
    assert stub.server is not None
    gateway.serve(endpoint(1, stub.port), endpoint(2, other.port))
    stub.server.close()
    answers = await asyncio.gather(*(ask(gateway, max_tokens=5) for _ in range(4)))
    assert answers == ["From the other"] * 4
    assert gateway.balancer.backends[1].health.on_trial
    await gateway.settled()


async def test_a_hung_replica_is_left_before_the_first_token_and_ejected(
    gateway: Running, stub: Stub, other: Stub
) -> None:
    stub.fault = "hang"
    gateway.serve(endpoint(1, stub.port), endpoint(2, other.port))
    suspects: list[int] = []
    gateway.gateway.suspect = lambda replica, reason: suspects.append(replica)
    answers = await asyncio.gather(*(ask(gateway, max_tokens=5) for _ in range(4)))
    assert answers == ["From the other"] * 4
    assert set(suspects) == {1} and not gateway.balancer.backends[1].takes(gateway.gateway.clock())
    await until(lambda: stub.cancelled == len(suspects))


async def test_a_whole_answer_that_is_cut_is_retried_because_nothing_was_sent(
    gateway: Running, stub: Stub, other: Stub
) -> None:
    stub.fault = "cut"
    gateway.serve(endpoint(1, stub.port), endpoint(2, other.port))
    assert {await ask(gateway, max_tokens=5) for _ in range(4)} == {"From the other"}


async def test_a_request_that_crashes_replicas_takes_one_at_a_time_and_is_then_refused(
    gateway: Running, stub: Stub, other: Stub
) -> None:
    stub.fault = other.fault = "crash"
    gateway.serve(endpoint(1, stub.port), endpoint(2, other.port))
    for _ in range(2):
        with pytest.raises(openai.InternalServerError) as failure:
            await ask(gateway, "poison", max_tokens=5)
        assert failure.value.status_code == 502 and "req-" in str(failure.value)
    assert len(stub.bodies) + len(other.bodies) == 2
    with pytest.raises(openai.BadRequestError):
        await ask(gateway, "poison", max_tokens=5)
    stub.fault = other.fault = ""
    assert await ask(gateway, "innocent", max_tokens=5)


async def test_an_http_error_of_a_replica_does_not_eject_it(gateway: Running, stub: Stub) -> None:
    stub.fault = "too_long"
    gateway.serve(endpoint(1, stub.port))
    for _ in range(5):
        with pytest.raises(openai.BadRequestError) as refusal:
            await ask(gateway, max_tokens=5)
        assert refusal.value.code == "context_length_exceeded"
    assert not gateway.balancer.backends[1].health.on_trial


async def test_a_loading_replica_is_retried_elsewhere(gateway: Running, stub: Stub, other: Stub) -> None:
    stub.fault = "busy"
    gateway.serve(endpoint(1, stub.port), endpoint(2, other.port))
    assert {await ask(gateway, max_tokens=5) for _ in range(4)} == {"From the other"}


@pytest.mark.parametrize("phase", ["queue", "prompt", "stream"])
async def test_a_client_that_leaves_gives_back_what_it_held(gateway: Running, stub: Stub, phase: str) -> None:
    gateway.serve(endpoint(1, stub.port, slots=1))
    stub.fault, stub.pause_seconds = ("", 0.05) if phase == "stream" else ("hang", 0.0)
    stub.words = ["word"] * 1000
    writers = []
    for _ in range(2 if phase == "queue" else 1):
        reader, writer = await start_raw(gateway)
        writers.append(writer)
        await until(lambda: stub.running)
    if phase == "queue":
        await until(lambda: gateway.balancer.waiting)
    if phase == "stream":
        await reader.readuntil(b"word")
    for writer in writers:
        writer.transport.abort()
    await until(lambda: not stub.running and stub.cancelled == 1)
    await gateway.settled()
    assert {timeline.outcome for timeline in gateway.kept.timelines} == {Outcomes.CANCELLED}


async def test_a_slow_reader_is_dropped_and_the_others_go_on(stub: Stub) -> None:
    stub.words = ["x" * 4000] * 4000
    async with running_gateway(Limits(slow_reader_seconds=0.3)) as gateway:
        gateway.serve(endpoint(1, stub.port, slots=2))
        _, writer = await start_raw(gateway)
        await until(lambda: any(client.is_stuck(1e12, SHORT) for client in gateway.gateway.clients))
        await asyncio.sleep(0.4)
        gateway.gateway.drop_slow_readers()
        await until(lambda: gateway.kept.timelines)
        assert "did not read" in gateway.last.error
        writer.transport.abort()
        await gateway.settled()


async def test_a_reader_that_pauses_gets_every_event_once_and_its_replica_no_blame(
    gateway: Running, stub: Stub
) -> None:
    stub.words = [f"<{number}>" + "x" * 2000 for number in range(4000)]
    gateway.serve(endpoint(1, stub.port))
    reader, writer = await start_raw(gateway)
    await until(lambda: any(client.is_stuck(1e12, SHORT) for client in gateway.gateway.clients))
    await asyncio.sleep(2 * SHORT.inter_token_seconds)
    text = (await reader.read()).decode()
    writer.close()
    assert [int(number) for number in re.findall(r"<(\d+)>", text)] == list(range(4000))
    assert "[DONE]" in text and gateway.last.outcome == Outcomes.OK
    assert gateway.balancer.backends[1].takes(gateway.gateway.clock())


async def test_a_cancelled_prompt_counts_until_the_replica_is_idle(gateway: Running, stub: Stub) -> None:
    stub.fault = "hang"
    gateway.serve(endpoint(1, stub.port, slots=1))
    _, writer = await start_raw(gateway)
    await until(lambda: stub.running)
    writer.transport.abort()
    await until(lambda: gateway.balancer.backends[1].unconfirmed)
    await gateway.settled()
    assert "GET /slots" in stub.paths


async def test_a_stopped_deployment_answers_those_who_wait(gateway: Running, stub: Stub) -> None:
    stub.fault = "hang"
    gateway.serve(endpoint(1, stub.port, slots=1))
    _, writer = await start_raw(gateway)
    await until(lambda: stub.running)
    waiting = asyncio.create_task(raw_stream(gateway))
    await until(lambda: gateway.balancer.waiting)
    writer.transport.abort()
    gateway.gateway.routes.apply([])
    assert "503" in (await waiting).splitlines()[0]


BAD_BODIES = {
    "not JSON": b"{",
    "not UTF-8": b'{"model": "\xff"}',
    "a byte order mark": b"\xef\xbb\xbf{}",
    "a lone surrogate": b'{"model": "tiny", "messages": [{"role": "user", "content": "\\ud800"}]}',
    "NaN": b'{"model": "tiny", "temperature": NaN}',
    "a key twice": b'{"model": "tiny", "model": "tiny"}',
    "deep nesting": b'{"model": ' + b"[" * 40 + b"]" * 40 + b"}",
    "very deep nesting": b"[" * 100_000,
    "a list": b"[]",
    "no model": b'{"messages": [{"role": "user", "content": "x"}]}',
    "no messages": b'{"model": "tiny", "messages": []}',
    "a wrong role": b'{"model": "tiny", "messages": [{"role": "root", "content": "x"}]}',
    "an image": b'{"model": "tiny", "messages": [{"role": "user", "content": [{"type": "image_url"}]}]}',
    "text for a number": b'{"model": "tiny", "messages": [{"role": "user", "content": "x"}], "seed": "1"}',
    "true for a number": b'{"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": true}',
    "too many choices": b'{"model": "tiny", "messages": [{"role": "user", "content": "x"}], "n": 9}',
}


@pytest.mark.parametrize("name", BAD_BODIES)
async def test_bad_bodies_are_refused_before_a_replica_sees_them(
    gateway: Running, stub: Stub, name: str
) -> None:
    gateway.serve(endpoint(1, stub.port))
    status, error = await post(gateway, BAD_BODIES[name])
    assert status == 400
    assert error["type"] == "invalid_request_error" and error["message"]
    assert stub.paths == []


async def post(
    gateway: Running, body: bytes, headers: bytes = b"", path: bytes = b"/v1/chat/completions"
) -> tuple[int, dict[str, str]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    length = b"" if b"Transfer-Encoding" in headers else f"Content-Length: {len(body)}\r\n".encode()
    key = b"" if b"Authorization" in headers else b"Authorization: Bearer k\r\n"
    writer.write(b"POST " + path + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + key + length + headers)
    writer.write(b"\r\n" + body)
    head, _, content = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]), json.loads(content)["error"]


async def test_size_encoding_and_key_limits_have_their_own_answers(stub: Stub) -> None:
    limits = Limits(body_bytes=1000, body_seconds=0.2, header_bytes=2000)
    async with running_gateway(limits) as gateway:
        gateway.serve(endpoint(1, stub.port))
        assert (await post(gateway, b"x" * 1001))[0] == 413
        chunked = b"Transfer-Encoding: chunked\r\n"
        assert (await post(gateway, b"400\r\n" + b"x" * 1024 + b"\r\n", chunked))[0] == 413
        assert (await post(gateway, b"5\r\nslow!", chunked))[0] == 408
        assert (await post(gateway, b"{}", b"Content-Encoding: gzip\r\n"))[0] == 415
        assert (await post(gateway, b"{}", b"X: " + b"y" * 2000 + b"\r\n"))[0] == 431
        assert (await post(gateway, b"{}", path=b"/v1/chat/completions?api_key=k"))[0] == 401
        assert (await post(gateway, b"{}", path=b"/nothing"))[0] == 404
        assert (await post(gateway, b"{}", path=b"/v1/models"))[0] == 405


AMBIGUOUS = {
    "two lengths": b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "length and chunks": b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "space before the colon": b"Content-Length : 2\r\n\r\n{}",
    "a negative length": b"Content-Length: -1\r\n\r\n{}",
}


@pytest.mark.parametrize("name", AMBIGUOUS)
async def test_requests_that_two_servers_could_read_differently_are_refused(
    gateway: Running, stub: Stub, name: str
) -> None:
    gateway.serve(endpoint(1, stub.port))
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k\r\n" + AMBIGUOUS[name]
    )
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 400") and answer.count(b"HTTP/1.1") == 1
    assert stub.paths == []

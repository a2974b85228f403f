"""A thousand clients that leave, at every moment and over replicas that fail, and nothing is left of them."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from serving.core.health import Health
from serving.gateway.limits import Limits
from serving.gateway.timeline import Outcomes, Timeline
from tests.serving.gateway_server import MODEL, Running, endpoint, running_gateway
from tests.serving.stub_replica import Stub, running_stub

SHORT = Limits(
    connect_seconds=1.0,
    first_token_seconds=1.0,
    inter_token_seconds=1.0,
    slowest_prefill_tokens_per_second=1e9,
    unconfirmed_seconds=1.0,
    queue_seconds=20.0,
)
LEAVES = ("in its head", "in its body", "half-closed", "any moment", "any moment, whole", "in the stream")
FAULTS = ("", "cut", "crash", "hang", "error_event", "stall", "busy")
LEAVING = 50
STAYING = 8
SLOTS = 8  # of each replica; one that was left counts for a quarter of a second more
AT_ONCE = 16
WAVES = 10


def request(rng: Random, streams: bool) -> bytes:
    """Every one is another: what crashed replicas twice would be refused before it reaches one."""
    asked = [{"role": "user", "content": f"Say hello to {rng.random()} of us"}]
    content = json.dumps({"model": MODEL, "messages": asked, "stream": streams}).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


async def leave(gateway: Running, rng: Random, kind: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    whole = request(rng, streams=kind != "any moment, whole")
    ends = {"in its head": 30, "in its body": -10}
    writer.write(whole[: ends.get(kind)])
    if kind == "half-closed":
        writer.write_eof()
    if kind == "in the stream":
        await reader.readuntil(b'"content":"')
    await asyncio.sleep(rng.random() * 0.05)
    writer.transport.abort()


async def stay(gateway: Running, rng: Random) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(request(rng, streams=rng.random() < 0.5))
    await reader.read()
    writer.close()


async def wave(gateway: Running, rng: Random, kinds: Counter[str]) -> None:
    """Some stay, many leave."""
    leaving = [rng.choice(LEAVES) for _ in range(LEAVING)]
    kinds.update(leaving)
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(client: Coroutine[Any, Any, None]) -> None:
        async with gate:
            with suppress(asyncio.IncompleteReadError):  # it was refused or cut before it could leave
                await client

    clients = [leave(gateway, rng, kind) for kind in leaving]
    clients += [stay(gateway, rng) for _ in range(STAYING)]
    rng.shuffle(clients)
    await asyncio.gather(*map(one, clients))


async def keep_time(gateway: Running) -> None:
    """As the process does once a second; an ejection ends with it, so that a replica that fails takes part again."""
    while True:
        for backend in gateway.balancer.backends.values():
            backend.health = Health()
        gateway.gateway.pump()
        await asyncio.sleep(0.5)


async def counters(gateway: Running) -> list[float]:
    """What the gateway says of itself, and what it holds."""
    state = gateway.gateway
    text = state.metrics.text(state.routes).decode()
    gauges = re.findall(r"^e2llm_(?:waiting|running)_requests\{.*\} ([\d.]+)$", text, re.MULTILINE)
    return [*map(float, gauges), len(state.clients), state.callers.total, state.visitors.total]


async def quiet_figures() -> tuple[int, int]:
    """Tasks and open files once sockets that are being closed are gone."""
    await asyncio.sleep(0.5)
    return len(asyncio.all_tasks()), len(list(Path("/proc/self/fd").iterdir()))


async def test_after_a_thousand_mixed_aborts_every_count_is_zero(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rng, kinds = Random(7), Counter[str]()
    async with running_gateway(SHORT) as gateway, running_stub() as first, running_stub() as second:
        for number, one in enumerate((first, second)):
            one.pause_seconds, one.slot_folder, one.words = 0.005, tmp_path / str(number), [" on"] * 12
            one.slot_folder.mkdir()
        serve_mixed(gateway, first, second)
        keeper = asyncio.create_task(keep_time(gateway))
        await wave(gateway, rng, Counter())
        await gateway.settled()
        before = await quiet_figures()
        for serve in (serve_mixed, serve_apart):
            serve(gateway, first, second)
            for number in range(WAVES):
                first.fault = FAULTS[number % len(FAULTS)]
                await wave(gateway, rng, kinds)
            first.fault = ""
            await gateway.settled()
        assert not any(await counters(gateway))
        tasks, files = await quiet_figures()
        assert tasks <= before[0] + 2 and files <= before[1] + 5
        keeper.cancel()
    assert kinds.total() == 1000 and kinds.keys() == set(LEAVES)
    ended = Counter((timeline.outcome, stage_of(timeline)) for timeline in gateway.kept.timelines)
    assert all(ended[Outcomes.CANCELLED, stage] for stage in ("queued", "streaming"))
    assert ended[Outcomes.OK, "streaming"] and ended[Outcomes.CUT, "streaming"]
    assert gateway.mover.moved and "a slot was given twice" not in caplog.text


def stage_of(timeline: Timeline) -> str:
    if timeline.first_token is not None:
        return "streaming"
    return "queued" if timeline.bound is None else "bound"


def serve_mixed(gateway: Running, first: Stub, second: Stub) -> None:
    gateway.serve(endpoint(1, first.port, slots=SLOTS), endpoint(2, second.port, slots=SLOTS))


def serve_apart(gateway: Running, first: Stub, second: Stub) -> None:
    """The one that fails computes the prompts of the other."""
    gateway.serve(
        endpoint(3, first.port, "prefill", SLOTS, first.slot_folder),
        endpoint(4, second.port, "decode", SLOTS, second.slot_folder),
        handover=True,
    )

"""What the gateway counts of a request: for the client, for the traffic page and for Prometheus alike."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import openai
import pytest

from serving import upstream
from serving.core import sse
from serving.core.openai import CHAT_PATH
from serving.gateway.samples import STRANGERS_PER_SECOND, Recorder
from tests.serving.gateway_server import ASK, MODEL, Running, ask, endpoint
from tests.serving.stub_replica import Stub, running_stub
from tests.serving.test_gateway_chat import split_roles


async def test_what_was_handed_over_is_no_cache_hit_of_the_client(
    gateway: Running, stub: Stub, tmp_path: Path
) -> None:
    async with running_stub() as decode:
        split_roles(gateway, stub, decode, tmp_path)
        answer = await gateway.openai.chat.completions.create(model=MODEL, messages=ASK)
        assert answer.usage.prompt_tokens_details.cached_tokens == gateway.last.cached_tokens == 0
        metrics = gateway.gateway.metrics.text(gateway.gateway.routes).decode()
        assert 'e2llm_prompt_tokens_total{from_cache="yes",model="tiny"} 0.0' in metrics
        assert 'e2llm_prompt_tokens_total{from_cache="no",model="tiny"} 6.0' in metrics


@pytest.mark.parametrize("hands_over", [True, False])
async def test_a_cut_answer_counts_what_came_and_is_no_failed_handover(
    gateway: Running, stub: Stub, tmp_path: Path, hands_over: bool
) -> None:
    async with running_stub(fault="cut", fault_after=3) as decode:
        if hands_over:
            split_roles(gateway, stub, decode, tmp_path)
        else:
            gateway.serve(endpoint(2, decode.port))
        stream = await gateway.openai.chat.completions.create(
            model=MODEL, messages=ASK, stream=True, max_tokens=9
        )
        with pytest.raises(openai.APIError):
            async for _ in stream:
                pass
        row = gateway.last.row()
        assert (row.outcome, row.prompt_tokens, row.output_tokens) == ("cut", 6, 2)
        assert (row.handover, row.handover_error) == ("hit" if hands_over else "none", "")
        await gateway.settled()


async def test_who_asks_for_timings_has_them_from_the_first_token_on_and_with_a_cut(
    gateway: Running, stub: Stub
) -> None:
    stub.fault, stub.fault_after = "cut", 3
    gateway.serve(endpoint(1, stub.port))
    body = {"model": MODEL, "messages": ASK, "stream": True}
    target = upstream.Target("127.0.0.1", gateway.port, "somebody")
    asks = {"X-E2LLM-Timing": "1"}
    stream = await upstream.open_stream(target, CHAT_PATH, body, upstream.Deadlines(), asks)
    events: list[dict[str, Any]] = []
    while arrived := await stream.events():
        events += map(sse.payload, sse.split(arrived))
    stream.close()
    way, cut = (event for event in events if "e2llm" in event)
    assert cut == events[-1]
    for told in (way["e2llm"], cut["e2llm"]):
        assert (told["request_id"], told["decode_replica"]) == (gateway.last.request_id, "R1")
        assert told["ttft_seconds"] >= told["waited_seconds"] >= 0
    assert (cut["error"]["code"], cut["error"]["cause"]) == ("stream_interrupted", "replica_failed")


async def test_a_prefill_replica_that_answers_itself_says_why(
    gateway: Running, stub: Stub, tmp_path: Path
) -> None:
    async with running_stub() as decode:
        split_roles(gateway, stub, decode, tmp_path)
        stub.fault, stub.fault_after = "", 0
        stub.pause_seconds = 0.3
        answer = asyncio.create_task(ask(gateway))
        while not stub.running:
            await asyncio.sleep(0.01)
        gateway.balancer.drain_replica(2)
        assert await answer == "Hello there!"
        assert gateway.last.handover is not None
        assert gateway.last.handover.reason == "no decode replica was in service, so R1 answered itself"


async def test_keys_that_are_refused_are_written_down_and_a_flood_of_them_is_not(
    gateway: Running, stub: Stub
) -> None:
    gateway.serve(endpoint(1, stub.port))
    with pytest.raises(openai.AuthenticationError):
        await ask(gateway, extra_headers={"Authorization": "Bearer wrong"})
    row = gateway.last.row()
    assert (row.outcome, row.status, row.api_key_id, row.error) == ("refused", 401, None, "not known")
    recorder = Recorder("g")
    for _ in range(STRANGERS_PER_SECOND + 5):
        recorder.add(gateway.last)
    assert recorder.skipped == 5

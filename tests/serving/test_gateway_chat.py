"""Chat completions through the gateway, with the openai SDK as the client and scripted replicas behind."""

from __future__ import annotations

import asyncio
from pathlib import Path

import openai
import pytest

from serving.core.handover import Step
from serving.gateway.limits import Limits
from tests.serving.gateway_server import (
    ASK,
    MODEL,
    FolderMover,
    LostMover,
    Running,
    ask,
    endpoint,
    running_gateway,
)
from tests.serving.stub_replica import Stub, running_stub


async def test_an_answer_comes_whole(gateway: Running, stub: Stub) -> None:
    gateway.serve(endpoint(1, stub.port))
    answer = await gateway.openai.chat.completions.create(model=MODEL, messages=ASK)
    assert answer.choices[0].message.content == "Hello there!"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None and answer.usage.prompt_tokens == 6
    assert answer.model == MODEL


async def test_an_answer_comes_in_pieces_without_the_usage_nobody_asked_for(
    gateway: Running, stub: Stub
) -> None:
    gateway.serve(endpoint(1, stub.port))
    stream = await gateway.openai.chat.completions.create(model=MODEL, messages=ASK, stream=True)
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello there!"
    assert all(chunk.choices and chunk.usage is None and chunk.model == MODEL for chunk in chunks)


async def test_usage_comes_with_the_stream_when_it_was_asked_for(gateway: Running, stub: Stub) -> None:
    gateway.serve(endpoint(1, stub.port))
    stream = await gateway.openai.chat.completions.create(
        model=MODEL,
        messages=ASK,
        stream=True,
        stream_options={"include_usage": True},
    )
    *_, last = [chunk async for chunk in stream]
    assert last.usage is not None and last.usage.completion_tokens == 3


async def test_timings_are_added_for_a_client_that_asks(gateway: Running, stub: Stub) -> None:
    gateway.serve(endpoint(1, stub.port))
    answer = await gateway.openai.chat.completions.create(
        model=MODEL,
        messages=ASK,
        extra_headers={"X-E2LLM-Timing": "1"},
    )
    timing = answer.model_extra["e2llm"]
    assert timing["decode_replica"] == "R1" and timing["handover"] == "none"
    assert timing["ttft_seconds"] >= timing["waited_seconds"] >= 0


async def test_the_replica_sees_only_what_it_may(gateway: Running, stub: Stub) -> None:
    gateway.serve(endpoint(1, stub.port))
    await ask(
        gateway,
        temperature=0.5,
        extra_body={
            "id_slot": 7,
            "n_discard": -1,
            "lora": [],
            "cache_prompt": False,
            "grammar": "root ::= x",
        },
    )
    body = stub.bodies[-1]
    assert body["temperature"] == 0.5 and body["stream"] is True
    assert body["id_slot"] in (0, 1) and body["cache_prompt"] is True
    assert not {"n_discard", "lora", "grammar"} & body.keys()


async def test_text_passes_unchanged(gateway: Running, stub: Stub) -> None:
    stub.words = ["👩‍👩‍👧", "ש", "\u0000", "é", '"usage":{', "[DONE]", "data: x\n\n", "\\"]
    gateway.serve(endpoint(1, stub.port))
    stream = await gateway.openai.chat.completions.create(model=MODEL, messages=ASK, stream=True)
    text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert text == "".join(stub.words) == await ask(gateway)


async def test_more_requests_than_slots_wait_in_the_gateway(gateway: Running, stub: Stub) -> None:
    stub.pause_seconds = 0.01
    gateway.serve(endpoint(1, stub.port, slots=2))
    answers = await asyncio.gather(*(ask(gateway) for _ in range(8)))
    assert answers == ["Hello there!"] * 8
    assert stub.most_running == 2
    assert max(timeline.queued_seconds or 0 for timeline in gateway.kept.timelines) > 0.05
    await gateway.settled()


async def test_several_choices_come_whole_and_streamed(gateway: Running, stub: Stub) -> None:
    gateway.serve(endpoint(1, stub.port, slots=2))
    create = gateway.openai.chat.completions.create
    whole = await create(model=MODEL, messages=ASK, n=3)
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    assert {choice.message.content for choice in whole.choices} == {"Hello there!"}
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (6, 9)
    assert whole.usage.prompt_tokens_details.cached_tokens == 0
    options = {"stream": True, "stream_options": {"include_usage": True}}
    texts, usages, heads = ["", "", ""], [], set()
    async for chunk in await create(model=MODEL, messages=ASK, n=3, **options):
        usages += [chunk.usage] if chunk.usage else []
        heads.add((chunk.id, chunk.created, chunk.object))
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == ["Hello there!"] * 3
    assert [usage.completion_tokens for usage in usages] == [9]
    assert len(heads) == 1 and next(iter(heads))[1:] == (1, "chat.completion.chunk")
    await gateway.settled()


async def test_one_broken_choice_ends_the_others(gateway: Running, stub: Stub) -> None:
    stub.fault = "error_event"
    gateway.serve(endpoint(1, stub.port, slots=2))
    with pytest.raises(openai.InternalServerError):
        await ask(gateway, n=3)
    await gateway.settled()


async def test_unknown_models_and_keys_are_refused(gateway: Running, stub: Stub) -> None:
    gateway.serve(endpoint(1, stub.port))
    with pytest.raises(openai.NotFoundError):
        await gateway.openai.chat.completions.create(model="other", messages=ASK)
    with pytest.raises(openai.AuthenticationError):
        await ask(gateway, extra_headers={"Authorization": "Bearer wrong"})
    assert [model.id async for model in gateway.openai.models.list()] == [MODEL]


async def test_a_key_over_its_limit_gets_429_with_a_time(gateway: Running, stub: Stub) -> None:
    stub.fault = "hang"
    gateway.serve(endpoint(1, stub.port))
    single = {"Authorization": "Bearer single"}
    first = asyncio.create_task(ask(gateway, extra_headers=single))
    while not stub.running:
        await asyncio.sleep(0.01)
    with pytest.raises(openai.RateLimitError) as refusal:
        await ask(gateway, extra_headers=single)
    assert int(refusal.value.response.headers["retry-after"]) >= 1
    first.cancel()


async def test_a_prompt_over_the_context_is_refused_before_it_takes_a_slot(
    gateway: Running, stub: Stub
) -> None:
    gateway.serve(endpoint(1, stub.port), context_tokens=8)
    long = [{"role": "user", "content": "word " * 9}]
    with pytest.raises(openai.BadRequestError) as refusal:
        await gateway.openai.chat.completions.create(model=MODEL, messages=long)
    assert refusal.value.code == "context_length_exceeded"
    assert "9" in str(refusal.value)
    assert stub.bodies == []


async def test_an_impossible_length_is_refused_and_a_generous_one_is_capped(
    gateway: Running, stub: Stub
) -> None:
    gateway.serve(endpoint(1, stub.port), context_tokens=100)
    with pytest.raises(openai.BadRequestError):
        await ask(gateway, max_tokens=101)
    for options in ({}, {"max_tokens": 99}):
        await ask(gateway, **options)
        assert stub.bodies[-1]["max_tokens"] == 94


async def test_without_a_replica_the_answer_is_503_with_a_time(gateway: Running) -> None:
    gateway.serve()
    with pytest.raises(openai.InternalServerError) as refusal:
        await ask(gateway)
    assert refusal.value.status_code == 503
    assert "retry-after" in refusal.value.response.headers


def split_roles(gateway: Running, prefill: Stub, decode: Stub, folder: Path) -> None:
    for name, one in (("p", prefill), ("d", decode)):
        one.slot_folder = folder / name
        one.slot_folder.mkdir()
    gateway.serve(
        endpoint(1, prefill.port, "prefill", 1, prefill.slot_folder),
        endpoint(2, decode.port, "decode", 2, decode.slot_folder),
        handover=True,
    )


async def test_a_prompt_is_handed_over_and_the_cached_tokens_prove_it(
    gateway: Running, stub: Stub, tmp_path: Path
) -> None:
    async with running_stub() as decode:
        split_roles(gateway, stub, decode, tmp_path)
        assert await ask(gateway) == "Hello there!"
        assert len(stub.bodies[-1]["prompt"]) == 5
        assert gateway.last.handover is not None and gateway.last.handover.step == Step.HIT
        assert gateway.last.handover.cached_tokens == 5
        assert gateway.mover.moved == 1
        assert not list(tmp_path.rglob("*.kv"))
        await gateway.settled()


async def test_a_request_that_waits_is_told_when_all_replicas_drain(gateway: Running, stub: Stub) -> None:
    stub.fault = "hang"
    gateway.serve(endpoint(1, stub.port, slots=1))
    under_way = asyncio.create_task(ask(gateway))
    waiting = asyncio.create_task(ask(gateway))
    while not gateway.balancer.waiting or not stub.running:
        await asyncio.sleep(0.01)
    gateway.gateway.routes.apply([])
    with pytest.raises(openai.InternalServerError, match="being stopped") as refusal:
        await waiting
    assert refusal.value.status_code == 503 and refusal.value.response.headers["retry-after"] == "5"
    assert stub.running, "what runs may end"
    under_way.cancel()


async def test_tokens_from_a_cache_do_not_count_as_computed(
    gateway: Running, stub: Stub, tmp_path: Path
) -> None:
    async with running_stub() as decode:
        split_roles(gateway, stub, decode, tmp_path)
        stub.prefix_cached = 3
        answer = await gateway.openai.chat.completions.create(model=MODEL, messages=ASK)
        assert (gateway.last.prompt_tokens, gateway.last.row().prefilled_tokens) == (6, 2)
        assert answer.usage.prompt_tokens_details.cached_tokens == gateway.last.cached_tokens == 3


async def test_a_prompt_computed_where_it_is_answered_is_timed_there(gateway: Running, stub: Stub) -> None:
    gateway.serve(endpoint(1, stub.port))
    await ask(gateway)
    row = gateway.last.row()
    assert (row.prefilled_tokens, row.prefill_seconds, row.prefilled_by_id) == (6, 0.25, 1)


@pytest.mark.parametrize("broken", ["save", "restore", "crash", "truncated", "network"])
async def test_a_failed_handover_costs_time_but_not_the_answer(
    stub: Stub, tmp_path: Path, broken: str
) -> None:
    mover = LostMover() if broken == "network" else FolderMover()
    async with running_gateway(mover=mover) as gateway, running_stub() as decode:
        split_roles(gateway, stub, decode, tmp_path)
        stub.saves_tokens = broken != "save"
        stub.fault = "crash" if broken == "crash" else ""
        decode.forgets_restored = broken == "restore"
        mover.truncates = broken == "truncated"
        assert await ask(gateway) == "Hello there!"
        assert gateway.last.handover is not None
        assert gateway.last.handover.step == Step.FALLBACK and gateway.last.handover.reason
        assert not list(tmp_path.rglob("*.kv"))
        await gateway.settled()


async def test_a_request_sent_again_gets_the_first_answer(gateway: Running, stub: Stub) -> None:
    gateway.serve(endpoint(1, stub.port))
    again = {"Idempotency-Key": "once"}
    first = await gateway.openai.chat.completions.with_raw_response.create(
        model=MODEL, messages=ASK, extra_headers=again
    )
    second = await gateway.openai.chat.completions.with_raw_response.create(
        model=MODEL, messages=ASK, extra_headers=again
    )
    assert first.text == second.text and second.headers["idempotent-replayed"] == "true"
    assert len(stub.bodies) == 1
    with pytest.raises(openai.UnprocessableEntityError):
        await ask(gateway, temperature=1, extra_headers=again)
    other = {**again, "Authorization": "Bearer another"}
    assert await ask(gateway, temperature=1, extra_headers=other) == "Hello there!"


async def test_a_repeat_while_the_first_runs_is_told_so(gateway: Running, stub: Stub) -> None:
    stub.pause_seconds = 0.1
    gateway.serve(endpoint(1, stub.port))
    again = {"Idempotency-Key": "once"}
    first = asyncio.create_task(ask(gateway, extra_headers=again))
    while not stub.running:
        await asyncio.sleep(0.01)
    with pytest.raises(openai.ConflictError):
        await ask(gateway, extra_headers=again)
    assert await first == await ask(gateway, extra_headers=again)


async def test_a_repeat_after_a_failure_is_served(gateway: Running, stub: Stub) -> None:
    stub.fault = "cut"
    gateway.serve(endpoint(1, stub.port))
    again = {"Idempotency-Key": "once"}
    with pytest.raises(openai.InternalServerError):
        await ask(gateway, extra_headers=again)
    stub.fault = ""
    assert await ask(gateway, extra_headers=again) == "Hello there!"


@pytest.mark.parametrize(
    ("origin", "allowed"), [("https://lab.example", True), ("https://evil.example", False)]
)
async def test_only_named_origins_may_call_from_a_page(stub: Stub, origin: str, allowed: bool) -> None:
    async with running_gateway(Limits(cors_origins=frozenset({"https://lab.example"}))) as gateway:
        gateway.serve(endpoint(1, stub.port))
        answer = await gateway.openai.chat.completions.with_raw_response.create(
            model=MODEL, messages=ASK, extra_headers={"Origin": origin}
        )
        assert (answer.headers.get("access-control-allow-origin") == origin) is allowed
        assert ("retry-after" in answer.headers.get("access-control-expose-headers", "")) is allowed


async def test_ready_and_metrics_tell_what_is_served(gateway: Running, stub: Stub) -> None:
    http = gateway.openai._client
    address = f"http://127.0.0.1:{gateway.port}"
    assert (await http.get(f"{address}/healthz")).status_code == 200
    assert (await http.get(f"{address}/readyz")).status_code == 503
    gateway.serve(endpoint(1, stub.port))
    await ask(gateway)
    assert (await http.get(f"{address}/readyz")).status_code == 200
    assert (await http.get(f"{address}/metrics")).status_code == 401
    text = (await http.get(f"{address}/metrics", headers={"Authorization": "Bearer k"})).text
    assert 'e2llm_requests_total{model="tiny",outcome="ok",status="200"} 1.0' in text
    assert 'e2llm_output_tokens_total{model="tiny"} 3.0' in text
    assert 'e2llm_slots{deployment="1",model="tiny",replica="1",replica_name="R1"} 2.0' in text
    assert 'e2llm_requests_total{model="",outcome="refused",status="401"} 1.0' in text

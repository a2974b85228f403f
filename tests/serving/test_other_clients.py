"""LangChain and LiteLLM, as people use them, against the gateway with a real llama-server behind."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from serving.gateway.routes import Endpoint
from tests.conftest import require
from tests.serving.gateway_server import MODEL, Running, endpoint, running_gateway
from tests.serving.stub_replica import running_stub

ASK = [{"role": "user", "content": "Name three colours."}]
CITY: dict[str, Any] = {
    "title": "city",
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Oslo"]}},
    "required": ["city"],
}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "now", "parameters": CITY}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}
CALL = 'Repeat: <tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
TIMES = {"max_retries": 0, "timeout": 120.0}


@pytest.fixture
async def gateway(real_replica: Endpoint) -> AsyncIterator[Running]:
    async with running_gateway() as running:
        running.serve(real_replica, context_tokens=1024)
        yield running


def langchain(gateway: Running, key: str = "somebody", **options: Any) -> Any:
    require(
        "langchain-openai", importlib.util.find_spec("langchain_openai"), "start the tests with ./run test"
    )
    from langchain_openai import ChatOpenAI

    address = f"http://127.0.0.1:{gateway.port}/v1"
    options = {"temperature": 0, "max_tokens": 12, **options}
    return ChatOpenAI(base_url=address, api_key=key, model=MODEL, stream_usage=True, **TIMES, **options)


@pytest.fixture
def litellm(monkeypatch: pytest.MonkeyPatch) -> Any:
    require("litellm", importlib.util.find_spec("litellm"), "start the tests with ./run test")
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else it asks the internet for prices
    import litellm

    litellm.telemetry = False
    return litellm


def options_of(gateway: Running, key: str = "somebody") -> dict[str, Any]:
    address = f"http://127.0.0.1:{gateway.port}/v1"
    return {"model": f"openai/{MODEL}", "messages": ASK, "api_base": address, "api_key": key, **TIMES}


async def test_langchain_gets_the_same_text_and_usage_whole_and_streamed(gateway: Running) -> None:
    model = langchain(gateway)
    whole = await model.ainvoke("Name three colours.")
    pieces = [piece async for piece in model.astream("Name three colours.")]
    assert whole.content and "".join(piece.content for piece in pieces) == whole.content
    assert whole.usage_metadata["output_tokens"] == 12
    (usage,) = [piece.usage_metadata for piece in pieces if piece.usage_metadata]
    assert usage["input_tokens"] == whole.usage_metadata["input_tokens"] and usage["output_tokens"] == 12
    assert whole.response_metadata["finish_reason"] == "length"


async def test_langchain_without_a_loop_works_too(gateway: Running) -> None:
    assert (await asyncio.to_thread(langchain(gateway).invoke, "Name three colours.")).content


async def test_langchain_calls_tools_and_keeps_schemas(gateway: Running) -> None:
    model = langchain(gateway, max_tokens=60)
    caller = model.bind_tools([WEATHER], tool_choice="required")
    call, *_ = (await caller.ainvoke(CALL)).tool_calls
    assert (call["name"], call["args"]) == ("weather", {"city": "Oslo"})
    streamed: Any = None
    async for piece in caller.astream(CALL):
        streamed = piece if streamed is None else streamed + piece
    assert streamed.tool_calls[0]["args"] == {"city": "Oslo"}
    kept = model.with_structured_output(CITY, method="json_schema")
    assert await kept.ainvoke("Where is it?") == {"city": "Oslo"}


async def test_litellm_gets_the_same_text_and_usage_whole_and_streamed(
    gateway: Running, litellm: Any
) -> None:
    asked = {**options_of(gateway), "temperature": 0, "max_tokens": 12}
    whole = await litellm.acompletion(**asked)
    stream = await litellm.acompletion(**asked, stream=True, stream_options={"include_usage": True})
    pieces = [piece async for piece in stream]
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
    assert text == whole.choices[0].message.content
    assert whole.usage.completion_tokens == 12
    assert pieces[-1].usage.completion_tokens == 12
    assert pieces[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    assert (await asyncio.to_thread(lambda: litellm.completion(**asked))).choices[0].message.content == text


async def test_litellm_calls_tools_and_keeps_schemas(gateway: Running, litellm: Any) -> None:
    asked = {**options_of(gateway), "max_tokens": 60, "temperature": 0}
    asked["messages"] = [{"role": "user", "content": CALL}]
    called = await litellm.acompletion(**asked, tools=[WEATHER], tool_choice="required")
    call, *_ = called.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Oslo"})
    stream = await litellm.acompletion(**asked, tools=[WEATHER], tool_choice="required", stream=True)
    rebuilt = litellm.stream_chunk_builder([piece async for piece in stream])
    assert json.loads(rebuilt.choices[0].message.tool_calls[0].function.arguments) == {"city": "Oslo"}
    kept = await litellm.acompletion(**asked, response_format=SCHEMA)
    assert json.loads(kept.choices[0].message.content) == {"city": "Oslo"}


async def test_both_tell_a_wrong_key_a_busy_key_and_an_absent_replica_apart(litellm: Any) -> None:
    async with running_stub(fault="hang") as stub, running_gateway() as gateway:
        gateway.serve(endpoint(1, stub.port))
        with pytest.raises(openai.AuthenticationError, match="not known"):
            await langchain(gateway, "wrong").ainvoke("x")
        with pytest.raises(litellm.AuthenticationError):
            await litellm.acompletion(**options_of(gateway, "wrong"))
        waits = asyncio.create_task(langchain(gateway, "single").ainvoke("x"))
        async with asyncio.timeout(60):
            while not stub.running:
                await asyncio.sleep(0.01)
        with pytest.raises(openai.RateLimitError) as busy:
            await langchain(gateway, "single").ainvoke("x")
        assert int(busy.value.response.headers["retry-after"]) >= 1
        with pytest.raises(litellm.RateLimitError):
            await litellm.acompletion(**options_of(gateway, "single"))
        waits.cancel()
        gateway.serve()
        with pytest.raises(openai.InternalServerError) as absent:
            await langchain(gateway).ainvoke("x")
        assert absent.value.status_code == 503 and "retry-after" in absent.value.response.headers
        with pytest.raises(litellm.ServiceUnavailableError):
            await litellm.acompletion(**options_of(gateway))

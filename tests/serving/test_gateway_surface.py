"""Every address of the gateway, with the official SDKs as clients and a real llama-server behind."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import openai
import pytest

from serving.gateway.routes import Endpoint
from tests.conftest import require
from tests.serving.gateway_server import MODEL, Running, endpoint, running_gateway
from tests.serving.stub_replica import running_stub

ASK = [{"role": "user", "content": "Name three colours."}]
WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Oslo"]}},
    "required": ["city"],
}


CALLS: list[dict[str, Any]] = [
    {
        "tool_calls": [
            {"index": 0, "id": "c1", "type": "function", "function": {"name": "weather", "arguments": ""}}
        ]
    },
    {"tool_calls": [{"index": 0, "function": {"arguments": '{"city": '}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '"Oslo"}'}}]},
]


@pytest.fixture
async def gateway(real_replica: Endpoint) -> AsyncIterator[Running]:
    async with running_gateway() as running:
        running.serve(real_replica, context_tokens=1024)
        yield running


@pytest.fixture
async def claude(gateway: Running) -> AsyncIterator[Any]:
    address = f"http://127.0.0.1:{gateway.port}"
    async with anthropic.AsyncAnthropic(base_url=address, api_key="somebody", max_retries=0) as client:
        yield client


async def test_streamed_and_whole_answers_are_the_same(gateway: Running) -> None:
    create = gateway.openai.chat.completions.create
    options = {"model": MODEL, "messages": ASK, "temperature": 0, "max_tokens": 12}
    whole = await create(**options)
    pieces = [chunk async for chunk in await create(**options, stream=True)]
    assert (
        "".join(chunk.choices[0].delta.content or "" for chunk in pieces) == whole.choices[0].message.content
    )
    assert pieces[-1].choices[0].finish_reason == whole.choices[0].finish_reason == "length"


async def test_the_synchronous_sdk_works_too(gateway: Running) -> None:
    def ask() -> str:
        with openai.OpenAI(base_url=f"http://127.0.0.1:{gateway.port}/v1", api_key="k") as client:
            answer = client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=3)
            return str(answer.choices[0].message.content)

    assert await asyncio.to_thread(ask)


async def test_seed_stop_and_logprobs_reach_the_model(gateway: Running) -> None:
    create = gateway.openai.chat.completions.create
    seeded = [
        await create(
            model=MODEL, messages=ASK, seed=7, temperature=1.5, max_tokens=8, logprobs=True, top_logprobs=2
        )
        for _ in range(2)
    ]
    assert seeded[0].choices[0].message.content == seeded[1].choices[0].message.content
    assert len(seeded[0].choices[0].logprobs.content) == 8
    assert len(seeded[0].choices[0].logprobs.content[0].top_logprobs) == 2
    plain = await create(model=MODEL, messages=ASK, temperature=0, max_tokens=12)
    stop = plain.choices[0].message.content.split()[1]
    stopped = await create(model=MODEL, messages=ASK, temperature=0, max_tokens=12, stop=stop)
    assert stopped.choices[0].finish_reason == "stop"
    assert stop not in stopped.choices[0].message.content


async def test_a_json_schema_is_kept(gateway: Running) -> None:
    answer = await gateway.openai.chat.completions.create(
        model=MODEL,
        messages=ASK,
        max_tokens=40,
        response_format={"type": "json_schema", "json_schema": {"name": "w", "schema": WEATHER}},
    )
    assert json.loads(answer.choices[0].message.content) == {"city": "Oslo"}


async def test_log_probabilities_of_a_chat_come_without_alternatives_unless_asked(gateway: Running) -> None:
    create = gateway.openai.chat.completions.create
    options = {"model": MODEL, "messages": ASK, "temperature": 0, "max_tokens": 4, "logprobs": True}
    whole = (await create(**options)).choices[0].logprobs.content
    tokens: list[Any] = []
    async for chunk in await create(**options, stream=True):
        for choice in chunk.choices:
            tokens += choice.logprobs.content if choice.logprobs else []
    assert len(whole) == len(tokens) == 4
    assert all(token.top_logprobs == [] and token.logprob < 0 for token in [*whole, *tokens])


@pytest.mark.parametrize("alternatives", [0, 2])
async def test_log_probabilities_of_plain_text_have_their_own_shape(
    gateway: Running, alternatives: int
) -> None:
    create = gateway.openai.completions.create
    options = {"model": MODEL, "prompt": "Once upon", "temperature": 0, "max_tokens": 4}
    whole = (await create(**options, logprobs=alternatives)).choices[0]
    text = ""
    offsets: list[int] = []
    async for chunk in await create(**options, logprobs=alternatives, stream=True):
        for choice in chunk.choices:
            text += choice.text
            offsets += choice.logprobs.text_offset if choice.logprobs else []
    found = whole.logprobs
    assert "".join(found.tokens) == whole.text == text
    assert [
        whole.text[offset:].startswith(token) for offset, token in zip(offsets, found.tokens, strict=True)
    ]
    assert found.text_offset == offsets and offsets[0] == 0 and len(offsets) == 4
    assert [len(likely) for likely in found.top_logprobs] == [alternatives] * 4
    assert len(found.token_logprobs) == 4


@pytest.mark.parametrize("schema", [{"type": "nonsense"}, {"type": "string", "pattern": "["}])
async def test_a_schema_that_cannot_be_kept_is_refused_in_our_words(
    gateway: Running, schema: dict[str, Any]
) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "w", "schema": schema}}
    with pytest.raises(openai.BadRequestError, match="answers cannot be held to") as refusal:
        await gateway.openai.chat.completions.create(model=MODEL, messages=ASK, response_format=form)
    assert refusal.value.param == "response_format"
    assert "parser" not in str(refusal.value) and "template" not in str(refusal.value)


async def test_an_answer_in_json_mode_is_a_json_object(gateway: Running) -> None:
    create = gateway.openai.chat.completions.create
    options = {"model": MODEL, "messages": ASK, "response_format": {"type": "json_object"}, "max_tokens": 60}
    # So small a model does not end an object by itself, so it is made to like closing braces.
    for bias in ({"}": 20.0}, {"}": 100.0}):
        answer = await create(**options, seed=1, logit_bias=bias)
        assert isinstance(json.loads(answer.choices[0].message.content), dict)
    pieces = [chunk async for chunk in await create(**options, logit_bias={"}": 100.0}, stream=True)]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in pieces)
    assert isinstance(json.loads(text), dict)


async def test_a_tool_is_called_whole_and_streamed() -> None:
    tool = {"type": "function", "function": {"name": "weather", "parameters": WEATHER}}
    options = {"model": MODEL, "messages": ASK, "tools": [tool], "tool_choice": "required"}
    async with running_stub(deltas=CALLS, finish="tool_calls") as stub, running_gateway() as gateway:
        gateway.serve(endpoint(1, stub.port))
        create = gateway.openai.chat.completions.create
        choice = (await create(**options)).choices[0]
        (call,) = choice.message.tool_calls
        assert (call.id, call.function.name, call.function.arguments) == ("c1", "weather", '{"city": "Oslo"}')
        assert choice.message.content is None and choice.finish_reason == "tool_calls"
        assert stub.bodies[-1]["tools"][0]["function"]["parameters"] == WEATHER
        arguments = ""
        async for chunk in await create(**options, stream=True):
            for delta in chunk.choices[0].delta.tool_calls or []:
                arguments += delta.function.arguments or ""
        assert json.loads(arguments) == {"city": "Oslo"}


@pytest.mark.parametrize(
    "choice", ["auto", "required", {"type": "function", "function": {"name": "weather"}}]
)
async def test_tools_that_a_template_does_not_know_are_not_left_out_in_silence(choice: Any) -> None:
    tool = {"type": "function", "function": {"name": "weather", "parameters": WEATHER}}
    options = {"model": MODEL, "messages": ASK, "tools": [tool], "tool_choice": choice}
    knows_none = {"chat_template_caps": {"supports_tools": False}}
    async with running_stub(props=knows_none) as stub, running_gateway() as gateway:
        gateway.serve(endpoint(1, stub.port))
        create = gateway.openai.chat.completions.with_raw_response.create
        if choice == "auto":
            for _ in range(2):
                answer = await create(**options)
                assert answer.headers["x-e2llm-note"].startswith(
                    "the chat template of this model knows no tools"
                )
            assert stub.paths.count("GET /props") == 1
            return
        with pytest.raises(openai.BadRequestError) as refusal:
            await create(**options)
        assert (refusal.value.code, refusal.value.param) == ("tools_unsupported", "tool_choice")
        assert stub.bodies == []


async def test_json_mode_gives_json(gateway: Running) -> None:
    asked = [{"role": "user", "content": "Answer with a JSON object that holds three colours."}]
    answer = await gateway.openai.chat.completions.create(
        model=MODEL,
        messages=asked,
        temperature=0,
        max_tokens=60,
        response_format={"type": "json_object"},
    )
    text = answer.choices[0].message.content
    assert text.lstrip().startswith("{")
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(text), dict)


async def test_reasoning_comes_in_a_field_of_its_own() -> None:
    deltas = [{"reasoning_content": "Hm. "}, {"reasoning_content": "Red."}, {"content": "Red!"}]
    async with running_stub(deltas=deltas) as stub, running_gateway() as gateway:
        gateway.serve(endpoint(1, stub.port))
        create = gateway.openai.chat.completions.create
        message = (await create(model=MODEL, messages=ASK)).choices[0].message
        assert (message.reasoning_content, message.content) == ("Hm. Red.", "Red!")
        pieces = [
            chunk.choices[0].delta async for chunk in await create(model=MODEL, messages=ASK, stream=True)
        ]
        thought = "".join(getattr(delta, "reasoning_content", None) or "" for delta in pieces)
        assert (thought, "".join(delta.content or "" for delta in pieces)) == ("Hm. Red.", "Red!")


async def test_curl_streams_and_sees_statuses(gateway: Running) -> None:
    curl = shutil.which("curl")
    require("curl", curl, "apt install curl")

    async def asked(key: str, body: dict[str, Any]) -> tuple[str, str]:
        address = f"http://127.0.0.1:{gateway.port}/v1/chat/completions"
        words = ["-sN", address, "-H", f"Authorization: Bearer {key}", "-H", "Content-Type: application/json"]
        done = await asyncio.create_subprocess_exec(
            str(curl), *words, "-w", "%{http_code}", "-d", json.dumps(body), stdout=asyncio.subprocess.PIPE
        )
        text = (await done.communicate())[0].decode()
        return text[:-3], text[-3:]

    body = {"model": MODEL, "messages": ASK, "max_tokens": 4}
    events, status = await asked("k", {**body, "stream": True})
    assert status == "200" and events.startswith("data: {") and events.endswith("data: [DONE]\n\n")
    whole, status = await asked("k", body)
    assert status == "200" and json.loads(whole)["usage"]["completion_tokens"] == 4
    refused, status = await asked("wrong", body)
    assert status == "401" and json.loads(refused)["error"]["type"] == "authentication_error"


async def test_plain_text_is_completed(gateway: Running) -> None:
    create = gateway.openai.completions.create
    options = {"model": MODEL, "prompt": "One, two, three,", "temperature": 0, "max_tokens": 6}
    whole = await create(**options)
    assert whole.object == "text_completion" and whole.usage.completion_tokens == 6
    pieces = [chunk async for chunk in await create(**options, stream=True)]
    assert "".join(chunk.choices[0].text for chunk in pieces) == whole.choices[0].text
    assert all(chunk.usage is None for chunk in pieces)


async def test_a_bad_schema_is_the_clients_fault_and_harms_nobody(gateway: Running) -> None:
    with pytest.raises(openai.BadRequestError):
        await gateway.openai.chat.completions.create(
            model=MODEL,
            messages=ASK,
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "w", "schema": {"type": "nothing"}},
            },
        )
    assert not gateway.balancer.backends[1].health.on_trial
    await gateway.settled()


async def test_embeddings_are_declined_in_words(gateway: Running) -> None:
    with pytest.raises(openai.BadRequestError, match="generates text; embeddings need a deployment"):
        await gateway.openai.embeddings.create(model=MODEL, input="x")


async def test_anthropic_messages_whole_and_streamed(gateway: Running, claude: Any) -> None:
    options = {
        "model": MODEL,
        "messages": ASK,
        "max_tokens": 10,
        "extra_body": {"temperature": 0},
        "system": "Be brief.",
    }
    whole = await claude.messages.create(**options)
    assert whole.stop_reason == "max_tokens" and whole.usage.output_tokens == 10
    async with claude.messages.stream(**options) as stream:
        text = "".join([piece async for piece in stream.text_stream])
        final = await stream.get_final_message()
    assert text == whole.content[0].text
    assert final.stop_reason == "max_tokens" and final.usage.output_tokens == 10


async def test_the_synchronous_sdk_of_anthropic_works_too(gateway: Running) -> None:
    def ask() -> tuple[str, str]:
        address = f"http://127.0.0.1:{gateway.port}"
        with anthropic.Anthropic(base_url=address, api_key="k", max_retries=0) as claude:
            options: Any = {
                "model": MODEL,
                "messages": ASK,
                "max_tokens": 5,
                "extra_body": {"temperature": 0},
            }
            whole = claude.messages.create(**options).content[0].text
            with claude.messages.stream(**options) as stream:
                return str(whole), "".join(stream.text_stream)

    whole, streamed = await asyncio.to_thread(ask)
    assert whole and whole == streamed


async def test_anthropic_tools_and_their_results() -> None:
    options = {"model": MODEL, "max_tokens": 80, "tools": [{"name": "weather", "input_schema": WEATHER}]}
    deltas = [{"reasoning_content": "Hm."}, {"content": "Let me see."}, *CALLS]
    async with running_stub(deltas=deltas, finish="tool_calls") as stub, running_gateway() as gateway:
        gateway.serve(endpoint(1, stub.port))
        address = f"http://127.0.0.1:{gateway.port}"
        async with anthropic.AsyncAnthropic(base_url=address, api_key="k", max_retries=0) as claude:
            whole = await claude.messages.create(**options, messages=ASK, tool_choice={"type": "any"})
            async with claude.messages.stream(**options, messages=ASK) as stream:
                streamed = await stream.get_final_message()
            for message in (whole, streamed):
                assert message.stop_reason == "tool_use"
                assert [block.type for block in message.content] == ["thinking", "text", "tool_use"]
                assert message.content[-1].input == {"city": "Oslo"}
            assert stub.bodies[0]["tool_choice"] == "required"
            result = {
                "type": "tool_result",
                "tool_use_id": "c1",
                "content": [{"type": "text", "text": "rain"}],
            }
            spoken: Any = [
                *ASK,
                {"role": "assistant", "content": whole.content},
                {"role": "user", "content": [result, {"type": "text", "text": "And now?"}]},
            ]
            await claude.messages.create(**options, messages=spoken)
    roles = [message["role"] for message in stub.bodies[-1]["messages"]]
    assert roles == ["user", "assistant", "tool", "user"]
    assert stub.bodies[-1]["messages"][1]["tool_calls"][0]["id"] == "c1"


async def test_anthropic_errors_have_their_shape(gateway: Running, claude: Any) -> None:
    with pytest.raises(anthropic.NotFoundError):
        await claude.messages.create(model="other", messages=ASK, max_tokens=5)
    with pytest.raises(anthropic.BadRequestError) as refusal:
        await claude.messages.create(model=MODEL, messages=ASK, max_tokens=5000)
    assert refusal.value.response.json()["error"]["type"] == "invalid_request_error"


async def test_tokens_are_counted_as_the_model_sees_them(gateway: Running, claude: Any) -> None:
    answer = await gateway.openai.chat.completions.create(model=MODEL, messages=ASK, max_tokens=1)
    counted = await claude.messages.count_tokens(model=MODEL, messages=ASK)
    assert counted.input_tokens == answer.usage.prompt_tokens


async def test_a_follow_up_reuses_the_prefix_where_it_lies(gateway: Running) -> None:
    create = gateway.openai.chat.completions.create
    talk = [{"role": "user", "content": "Tell me about rivers and lakes in the far north."}]
    first = await create(model=MODEL, messages=talk, max_tokens=8)
    await create(model=MODEL, messages=ASK, max_tokens=3)
    talk += [
        {"role": "assistant", "content": first.choices[0].message.content},
        {"role": "user", "content": "And in the south?"},
    ]
    second = await create(model=MODEL, messages=talk, max_tokens=3)
    assert second.usage.prompt_tokens_details.cached_tokens > first.usage.prompt_tokens

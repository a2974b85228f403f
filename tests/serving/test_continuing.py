"""The rest of an answer that was cut, on request: nothing repeated, nothing missing, or a refusal in words."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anthropic
import openai
import pytest

from serving.core.body import BadRequest
from serving.core.continuing import resumed
from serving.core.openai import chat_request
from serving.gateway.routes import Endpoint
from tests.serving.gateway_server import MODEL, Running, endpoint, running_gateway
from tests.serving.stub_replica import running_stub

ASK = [{"role": "user", "content": "Name three colours and say why you like them."}]
GO_ON = {"extra_body": {"continue_final_message": True}}


@pytest.fixture
async def gateway(real_replica: Endpoint) -> AsyncIterator[Running]:
    async with running_gateway() as running:
        running.serve(real_replica, context_tokens=1024)
        yield running


async def whole_and_cut(gateway: Running) -> tuple[str, str]:
    """An answer, and its beginning."""
    create = gateway.openai.chat.completions.create
    answers = [
        await create(model=MODEL, messages=ASK, temperature=0, max_tokens=tokens) for tokens in (24, 10)
    ]
    whole, cut = (str(answer.choices[0].message.content) for answer in answers)
    assert whole.startswith(cut) and whole != cut
    return whole, cut


async def test_a_cut_answer_goes_on_whole_and_streamed(gateway: Running) -> None:
    whole, cut = await whole_and_cut(gateway)
    options = {
        "model": MODEL,
        "messages": [*ASK, {"role": "assistant", "content": cut}],
        "temperature": 0,
        "max_tokens": 14,
        **GO_ON,
    }
    create = gateway.openai.chat.completions.create
    rest = await create(**options)
    assert cut + rest.choices[0].message.content == whole
    assert (rest.object, rest.choices[0].finish_reason) == ("chat.completion", "length")
    assert rest.usage.completion_tokens == 14
    pieces = [
        piece async for piece in await create(**options, stream=True, stream_options={"include_usage": True})
    ]
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
    assert cut + text == whole
    assert {piece.object for piece in pieces} == {"chat.completion.chunk"} and pieces[-1].usage
    await gateway.settled()


async def test_anthropic_clients_begin_the_answer_themselves(gateway: Running) -> None:
    whole, cut = await whole_and_cut(gateway)
    address = f"http://127.0.0.1:{gateway.port}"
    asked: Any = {
        "model": MODEL,
        "messages": [*ASK, {"role": "assistant", "content": cut}],
        "max_tokens": 14,
        "extra_body": {"temperature": 0},
    }
    async with anthropic.AsyncAnthropic(base_url=address, api_key="somebody", max_retries=0) as claude:
        rest = await claude.messages.create(**asked)
        assert cut + rest.content[0].text == whole
        async with claude.messages.stream(**asked) as stream:
            assert cut + "".join([piece async for piece in stream.text_stream]) == whole


async def test_a_template_that_closes_the_message_is_refused_before_a_slot_is_used() -> None:
    async with running_stub(closes_messages=True) as stub, running_gateway() as gateway:
        gateway.serve(endpoint(1, stub.port))
        with pytest.raises(openai.BadRequestError, match="closes the last message") as refusal:
            await gateway.openai.chat.completions.create(
                model=MODEL, messages=[*ASK, {"role": "assistant", "content": "Red"}], **GO_ON
            )
        assert refusal.value.code == "continue_unsupported"
        assert stub.bodies == []


UNFIT: dict[str, dict[str, Any]] = {
    "no text so far": {},
    "an empty text": {"messages": [*ASK, {"role": "assistant", "content": " "}]},
    "a message of the user": {"messages": ASK},
    "tools": {"tools": [{"type": "function", "function": {"name": "f"}}]},
    "a schema": {"response_format": {"type": "json_object"}},
    "logprobs": {"logprobs": True},
    "two answers": {"n": 2},
    "no truth value": {"continue_final_message": "yes"},
}


@pytest.mark.parametrize("what", UNFIT)
def test_what_cannot_be_continued_is_refused_in_words(what: str) -> None:
    said = [*ASK, {"role": "assistant", "content": "Red" if what != "no text so far" else None}]
    asked = {"model": "m", "messages": said, "continue_final_message": True, **UNFIT[what]}
    with pytest.raises(BadRequest) as refusal:
        chat_request(asked, 200)
    assert refusal.value.param == "continue_final_message"


def test_blanks_that_a_template_trims_are_put_back() -> None:
    said = [*ASK, {"role": "assistant", "content": "\nRed, \n"}]
    request = chat_request({"model": "m", "messages": said, "continue_final_message": True, "top_k": 1}, 200)
    rest = resumed(request, "<user>Name<assistant>Red,")
    assert rest.body == {"model": "m", "prompt": "<user>Name<assistant>Red, \n", "top_k": 1}
    assert rest.opening == request.opening

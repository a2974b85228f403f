"""What is wrong with a request is said with the name of the field, in words and as `param`."""

from __future__ import annotations

from typing import Any

import pytest

from serving.core.anthropic import messages_request
from serving.core.body import BadRequest, parse
from serving.core.openai import CHAT_FIELDS, COMPLETION_FIELDS, chat_request, completion_request

ASK = [{"role": "user", "content": "Name three colours."}]
WRONG: dict[str, Any] = {"not": ["a", "value", "for", "any"]}


@pytest.mark.parametrize(
    "field", [*CHAT_FIELDS, "n", "max_tokens", "max_completion_tokens", "stream", "model"]
)
def test_every_field_of_a_chat_is_named_when_it_is_wrong(field: str) -> None:
    wrong = ["never"] if field in ("logit_bias", "chat_template_kwargs") else WRONG
    with pytest.raises(BadRequest) as refusal:
        chat_request({"model": "m", "messages": ASK, field: wrong}, 100)
    assert (refusal.value.param, str(refusal.value).partition(" ")[0].rstrip(":")) == (field, field)


@pytest.mark.parametrize(
    "field", [*COMPLETION_FIELDS, "n", "max_tokens", "prompt", "suffix", "echo", "best_of"]
)
def test_every_field_of_a_completion_is_named_when_it_is_wrong(field: str) -> None:
    wrong = ["never"] if field == "logit_bias" else WRONG
    with pytest.raises(BadRequest) as refusal:
        completion_request({"model": "m", "prompt": "Once", field: wrong}, 100)
    assert (refusal.value.param, str(refusal.value).partition(" ")[0]) == (field, field)


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"logit_bias": {"12": 500}}, "logit_bias.12"),
        ({"tool_choice": {"function": {"name": 4}}}, "tool_choice.function.name"),
        ({"stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
        ({"messages": [{"role": "user", "content": "x", "name": 4}]}, "messages[0].name"),
    ],
)
def test_what_lies_inside_a_field_is_named_with_its_path(given: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        chat_request({"model": "m", "messages": ASK, **given}, 100)
    assert refusal.value.param == param
    assert str(refusal.value).startswith(param)


def test_a_number_out_of_range_is_said_with_its_field_and_its_limits() -> None:
    with pytest.raises(BadRequest) as refusal:
        chat_request({"model": "m", "messages": ASK, "max_tokens": -5}, 100)
    assert str(refusal.value) == "max_tokens is -5; it must be a whole number from 1 to 2147483647"


def test_a_long_value_is_not_sent_back_whole() -> None:
    with pytest.raises(BadRequest) as refusal:
        chat_request({"model": "m", "messages": ASK, "temperature": "9" * 100_000}, 100)
    assert len(str(refusal.value)) < 200


def test_a_number_that_no_parser_reads_is_a_bad_body() -> None:
    with pytest.raises(BadRequest):
        parse(b'{"seed": ' + b"9" * 5000 + b"}")


@pytest.mark.parametrize(
    "given", [{"stop_sequences": [4]}, {"tools": 5}, {"max_tokens": 0}, {"temperature": "warm"}]
)
def test_messages_of_anthropic_name_their_own_fields(given: dict[str, Any]) -> None:
    field = next(iter(given))
    with pytest.raises(BadRequest) as refusal:
        messages_request({"model": "m", "messages": ASK, "max_tokens": 8, **given}, 100)
    assert (refusal.value.param, str(refusal.value).partition(" ")[0]) == (field, field)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (rb'{"a": "\ud800"}', "lone surrogate"),
        (b'{"a": "NaN", "b": NaN}', "NaN at character 18"),
        (b'{"a": "\\"Infinity", "b": -Infinity}', "-Infinity at character 25"),
        (b'{"a": "\xff"}', "not valid UTF-8"),
    ],
)
def test_what_is_no_json_is_said_with_its_kind_and_place(body: bytes, said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        parse(body)


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        (["a", "b"], "prompt is a list of 2 texts; send a request for each"),
        ([12, 13], "prompt is a list of token numbers; send the text itself"),
        ([[12], [13]], "prompt is a list of token numbers; send the text itself"),
    ],
)
def test_a_prompt_that_is_no_single_text_is_named_for_what_it_is(prompt: object, said: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        completion_request({"model": "m", "prompt": prompt}, 100)
    assert str(refusal.value) == said


def test_a_schema_that_is_no_object_is_refused() -> None:
    form = {"type": "json_schema", "json_schema": {"schema": 5}}
    with pytest.raises(BadRequest, match="must be an object"):
        chat_request({"model": "m", "messages": ASK, "response_format": form}, 100)

"""What a client may ask for: request bodies are read against an allow-list and built anew for the replica.

Fields of llama.cpp that choose slots, caches, adapters or files never pass; unknown fields are dropped.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from serving.core.body import BadRequest

MAX_STOPS = 16
MAX_CHOICES = 8
MAX_TOP_LOGPROBS = 20
MAX_SCHEMA_CHARACTERS = 64 * 1024
MAX_TOKENS = 2**31 - 1
SHOWN_CHARACTERS = 60
TOKENS_PER_MESSAGE = 16  # more than any chat template in use adds around one message
TOKENS_PER_TEMPLATE = 64
TOKENS_PER_TOOLS = 1024
CHAT_PATH = "/v1/chat/completions"
COMPLETION_PATH = "/v1/completions"

Check = Callable[[Any, str], Any]  # value and name of the field -> what is passed on


@dataclass(frozen=True)
class Generation:
    """An answer that was asked for: where a replica makes it, and the body that it is sent.

    `opening` is how the conversation begins; follow-ups have the same one. `continues` is the text of the last
    last message when the answer shall go on from it. `alternatives` is how many likely tokens beside each are wanted
    with the log probabilities; None without these.
    """

    model: str
    path: str
    body: dict[str, Any]
    opening: Any
    choices: int
    streams: bool
    wants_usage: bool
    max_tokens: int | None
    token_bound: int
    continues: str = ""
    alternatives: int | None = None


def chat_request(value: dict[str, Any], size: int) -> Generation:
    """A chat completion; `size` is the length of the body in bytes."""
    model = _text(value, "model", "model", required=True)
    messages = _messages(value.get("messages"))
    tools = TOKENS_PER_TOOLS if value.get("tools") else 0
    fields = allowed(value, CHAT_FIELDS)
    alternatives = fields.get("top_logprobs", 0) if fields.get("logprobs") else None
    if alternatives is not None:
        fields["top_logprobs"] = max(alternatives, 1)
    return Generation(
        model=model,
        path=CHAT_PATH,
        body={"model": model, "messages": messages, **fields},
        opening=opening(messages),
        choices=_choices(value),
        streams=_flag(value.get("stream", False), "stream"),
        wants_usage=_wants_usage(value),
        max_tokens=_max_tokens(value, "max_completion_tokens", "max_tokens"),
        # No tokenizer makes more tokens than there are bytes, so a short prompt need not be counted.
        token_bound=size + TOKENS_PER_MESSAGE * len(messages) + TOKENS_PER_TEMPLATE + tools,
        continues=_continued(value, messages),
        alternatives=alternatives,
    )


def completion_request(value: dict[str, Any], size: int) -> Generation:
    """A completion of plain text."""
    model = _text(value, "model", "model", required=True)
    prompt = _prompt(value.get("prompt"))
    for name, plain in (("suffix", None), ("echo", False), ("best_of", 1)):
        if value.get(name) and value[name] != plain:
            raise BadRequest(f"{name} is {shown(value[name])}; it is not supported", name)
    fields = allowed(value, COMPLETION_FIELDS)
    alternatives = fields.get("logprobs")
    if alternatives is not None:
        fields["logprobs"] = max(alternatives, 1)
    return Generation(
        model=model,
        path=COMPLETION_PATH,
        body={"model": model, "prompt": prompt, **fields},
        opening=prompt[:256],
        choices=_choices(value),
        streams=_flag(value.get("stream", False), "stream"),
        wants_usage=_wants_usage(value),
        max_tokens=_max_tokens(value, "max_tokens"),
        token_bound=size,
        alternatives=alternatives,
    )


def _prompt(value: Any) -> str:
    if isinstance(value, list) and value and all(isinstance(one, str) for one in value):
        if len(value) > 1:
            raise BadRequest(f"prompt is a list of {len(value)} texts; send a request for each", "prompt")
        value = value[0]
    if isinstance(value, list) and value and all(isinstance(one, int | list) for one in value):
        raise BadRequest("prompt is a list of token numbers; send the text itself", "prompt")
    if not isinstance(value, str) or not value:
        raise BadRequest("prompt must be one text that is not empty", "prompt")
    return value


def allowed(value: dict[str, Any], fields: dict[str, Check]) -> dict[str, Any]:
    return {name: check(value[name], name) for name, check in fields.items() if value.get(name) is not None}


def opening(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Up to the first message of the user."""
    first = next((index for index, message in enumerate(messages) if message["role"] == "user"), 0)
    return messages[: first + 1]


def _wants_usage(value: dict[str, Any]) -> bool:
    options = value.get("stream_options") or {}
    if not isinstance(options, dict):
        raise BadRequest("stream_options must be an object", "stream_options")
    return _flag(options.get("include_usage", False), "stream_options.include_usage")


def _max_tokens(value: dict[str, Any], *names: str) -> int | None:
    given = [name for name in names if value.get(name) is not None]
    return whole_number(1, MAX_TOKENS)(value[given[0]], given[0]) if given else None


def _messages(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not value:
        raise BadRequest("messages must be a list with at least one message", "messages")
    return [_message(message, f"messages[{index}]") for index, message in enumerate(value)]


def _message(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadRequest(f"{path} must be an object", path)
    role = value.get("role")
    if role not in ("system", "developer", "user", "assistant", "tool"):
        raise BadRequest(
            f"{path}.role is {shown(role)}; it must be system, user, assistant or tool", f"{path}.role"
        )
    message: dict[str, Any] = {"role": "system" if role == "developer" else role}
    message["content"] = _content(value.get("content"), f"{path}.content", optional=role == "assistant")
    for name in ("name", "tool_call_id", "reasoning_content"):
        if value.get(name) is not None:
            message[name] = _text(value, name, f"{path}.{name}")
    if value.get("tool_calls") is not None:
        message["tool_calls"] = _tool_calls(value["tool_calls"], f"{path}.tool_calls")
    return message


def _content(value: Any, path: str, optional: bool) -> Any:
    if isinstance(value, str) or (value is None and optional):
        return value
    if not isinstance(value, list):
        raise BadRequest(f"{path} must be text or a list of text parts", path)
    parts = []
    for part in value:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise BadRequest(f"{path} holds a part that is not text; this endpoint reads text only", path)
        parts.append({"type": "text", "text": part["text"]})
    return parts


def _continued(value: dict[str, Any], messages: list[dict[str, Any]]) -> str:
    """The text from which the answer shall go on; empty when nobody asked for that."""
    field = "continue_final_message"
    if not _flag(value.get(field) or False, field):
        return ""
    more = [name for name in ("tools", "logprobs") if value.get(name)]
    more += ["response_format"] if value.get("response_format") not in (None, {"type": "text"}) else []
    if more or _choices(value) > 1:
        raise BadRequest(f"only plain text can be continued; leave out {' and '.join(more) or 'n'}", field)
    last = messages[-1]
    text = last["content"]
    if isinstance(text, list):
        text = text[0]["text"] if len(text) == 1 else ""
    if last["role"] != "assistant" or last.get("tool_calls") or not (text or "").strip():
        raise BadRequest(
            "to be continued, the last message must be the text so far, of the assistant and without tool calls",
            field,
        )
    return str(text)


def _tool_calls(value: Any, path: str) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise BadRequest(f"{path} must be a list", path)
    calls = []
    for call in value:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise BadRequest(f"{path} holds a call without a function name", path)
        arguments = function.get("arguments", "")
        if not isinstance(arguments, str):
            raise BadRequest(f"{path}: the arguments of a call must be JSON text", path)
        calls.append(
            {
                "id": str(call.get("id", "")),
                "type": "function",
                "function": {"name": function["name"], "arguments": arguments},
            }
        )
    return calls


def _tools(value: Any, path: str) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise BadRequest(f"{path} must be a list", path)
    tools = []
    for tool in value:
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise BadRequest(f"{path}: each tool needs a function with a name", path)
        known = {
            name: function[name]
            for name in ("name", "description", "parameters", "strict")
            if name in function
        }
        tools.append({"type": "function", "function": known})
    return _small(tools, path)


def _tool_choice(value: Any, path: str) -> Any:
    if value in ("auto", "none", "required"):
        return value
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        name = _text(value["function"], "name", f"{path}.function.name", required=True)
        return {"type": "function", "function": {"name": name}}
    raise BadRequest(f"{path} must be auto, none, required or a function", path)


def _response_format(value: Any, path: str) -> dict[str, Any]:
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text":
        return {"type": kind}
    if kind == "json_object":
        # llama-server b10434 lets prose through when it is given no schema.
        return {"type": kind, "schema": {"type": "object"}}
    if kind == "json_schema" and isinstance(value.get("json_schema"), dict):
        if not isinstance(value["json_schema"].get("schema"), dict):
            raise BadRequest(f"{path}.json_schema.schema must be an object: the JSON schema", path)
        return _small({"type": kind, "json_schema": value["json_schema"]}, path)
    raise BadRequest(f"{path} must be text, json_object or json_schema with a schema", path)


def stops_of(value: Any, path: str) -> list[str]:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
        raise BadRequest(f"{path} must be text or a list of texts", path)
    if len(stops) > MAX_STOPS:
        raise BadRequest(f"{path} holds {len(stops)} texts, {MAX_STOPS} are allowed", path)
    return stops


def _logit_bias(value: Any, path: str) -> dict[str, float]:
    if not isinstance(value, dict) or len(value) > 1024:
        raise BadRequest(f"{path} must be an object of at most 1024 tokens", path)
    return {token: number(-100, 100)(bias, f"{path}.{token}") for token, bias in value.items()}


def _template_arguments(value: Any, path: str) -> dict[str, Any]:
    plain = isinstance(value, dict) and all(
        isinstance(item, str | bool | int | float) for item in value.values()
    )
    if not plain or len(value) > 16:
        raise BadRequest(f"{path} must be an object of plain values", path)
    return dict(value)


def _choices(value: dict[str, Any]) -> int:
    given = value.get("n")
    return 1 if given is None else whole_number(1, MAX_CHOICES)(given, "n")


def number(low: float, high: float) -> Check:
    def check(value: Any, name: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise BadRequest(f"{name} is {shown(value)}; it must be a number from {low} to {high}", name)
        return value

    return check


def whole_number(low: int, high: int) -> Check:
    def check(value: Any, name: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise BadRequest(
                f"{name} is {shown(value)}; it must be a whole number from {low} to {high}", name
            )
        return value

    return check


def _flag(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise BadRequest(f"{name} is {shown(value)}; it must be true or false", name)
    return value


def _text(value: dict[str, Any], name: str, path: str, required: bool = False) -> str:
    text = value.get(name)
    if not isinstance(text, str) or (required and not text):
        raise BadRequest(f"{path} must be text{' that is not empty' if required else ''}", path)
    return text


def _choice(*allowed: str) -> Check:
    def check(value: Any, name: str) -> str:
        if value not in allowed:
            raise BadRequest(f"{name} is {shown(value)}; it must be one of {', '.join(allowed)}", name)
        return str(value)

    return check


def _small(value: Any, name: str) -> Any:
    size = len(json.dumps(value))
    if size > MAX_SCHEMA_CHARACTERS:
        raise BadRequest(f"{name} has {size} characters, {MAX_SCHEMA_CHARACTERS} are allowed", name)
    return value


def shown(value: Any) -> str:
    """The value as the client wrote it, cut where it is long."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


SAMPLING_FIELDS: dict[str, Check] = {
    "temperature": number(0, 10),
    "top_p": number(0, 1),
    "top_k": whole_number(0, 10**6),
    "min_p": number(0, 1),
    "presence_penalty": number(-2, 2),
    "frequency_penalty": number(-2, 2),
    "repeat_penalty": number(0, 10),
    "seed": whole_number(-(2**63), 2**63 - 1),
    "stop": stops_of,
    "logit_bias": _logit_bias,
}
COMPLETION_FIELDS: dict[str, Check] = {**SAMPLING_FIELDS, "logprobs": whole_number(0, MAX_TOP_LOGPROBS)}
CHAT_FIELDS: dict[str, Check] = {
    **SAMPLING_FIELDS,
    "logprobs": _flag,
    "top_logprobs": whole_number(0, MAX_TOP_LOGPROBS),
    "response_format": _response_format,
    "tools": _tools,
    "tool_choice": _tool_choice,
    "parallel_tool_calls": _flag,
    "reasoning_effort": _choice("none", "minimal", "low", "medium", "high", "xhigh"),
    "chat_template_kwargs": _template_arguments,
}

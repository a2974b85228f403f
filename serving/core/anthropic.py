"""Anthropic's Messages, translated to a chat completion and back, so that all that follows is the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from serving.core import sse
from serving.core.body import BadRequest
from serving.core.openai import Generation, chat_request, stops_of

STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}
PASSED = ("model", "max_tokens", "temperature", "top_p", "top_k", "stream")
ERROR_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def messages_request(value: dict[str, Any], size: int) -> Generation:
    """The chat completion that gives the answer to a Messages request."""
    if value.get("max_tokens") is None:
        raise BadRequest("max_tokens is required", "max_tokens")
    chat = {name: value[name] for name in PASSED if value.get(name) is not None}
    chat["messages"] = [*system_messages(value.get("system")), *chat_messages(value.get("messages"))]
    if value.get("stop_sequences"):
        chat["stop"] = stops_of(value["stop_sequences"], "stop_sequences")
    if value.get("tools"):
        chat["tools"] = chat_tools(value["tools"])
    if value.get("tool_choice"):
        chat["tool_choice"] = chat_tool_choice(value["tool_choice"])
    last = chat["messages"][-1] if chat["messages"] else {}
    chat["continue_final_message"] = last.get("role") == "assistant" and not last.get("tool_calls")
    return chat_request(chat, size)


def system_messages(system: Any) -> list[dict[str, Any]]:
    if not system:
        return []
    return [{"role": "system", "content": text_of(system, "system")}]


def chat_messages(messages: Any) -> Iterator[dict[str, Any]]:
    if not isinstance(messages, list):
        raise BadRequest("messages must be a list", "messages")
    for message in messages:
        if not isinstance(message, dict) or message.get("role") not in ("user", "assistant"):
            raise BadRequest("the role of a message must be user or assistant", "messages")
        content = message.get("content")
        if isinstance(content, str):
            yield {"role": message["role"], "content": content}
        elif message["role"] == "assistant":
            yield assistant_message(blocks_of(content))
        else:
            yield from user_messages(blocks_of(content))


def blocks_of(content: Any) -> list[dict[str, Any]]:
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise BadRequest("the content of a message must be text or a list of blocks", "messages")
    return content


def assistant_message(blocks: list[dict[str, Any]]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": None}
    texts = [block for block in blocks if block.get("type") == "text"]
    if texts:
        message["content"] = text_of(texts, "messages")
    calls = [
        {
            "id": block.get("id", ""),
            "type": "function",
            "function": {"name": block.get("name"), "arguments": json.dumps(block.get("input", {}))},
        }
        for block in blocks
        if block.get("type") == "tool_use"
    ]
    return {**message, "tool_calls": calls} if calls else message


def user_messages(blocks: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Results of tools come first: in a chat they are messages of their own."""
    rest = []
    for block in blocks:
        if block.get("type") == "tool_result":
            text = text_of(block.get("content") or "", "messages")
            yield {"role": "tool", "tool_call_id": block.get("tool_use_id", ""), "content": text}
        else:
            rest.append(block)
    if rest:
        yield {"role": "user", "content": text_of(rest, "messages")}


def text_of(content: Any, param: str) -> str:
    if isinstance(content, str):
        return content
    texts = []
    for block in content if isinstance(content, list) else [None]:
        if not isinstance(block, dict) or not isinstance(block.get("text"), str):
            raise BadRequest(f"{param} holds a block that is not text; this endpoint reads text only", param)
        texts.append(block["text"])
    return "\n".join(texts)


def chat_tools(tools: Any) -> list[dict[str, Any]]:
    if not isinstance(tools, list):
        raise BadRequest("tools must be a list", "tools")
    return [chat_tool(tool) for tool in tools]


def chat_tool(tool: Any) -> dict[str, Any]:
    if not isinstance(tool, dict) or "input_schema" not in tool:
        raise BadRequest("each tool needs a name and an input_schema", "tools")
    function = {"name": tool.get("name"), "parameters": tool["input_schema"]}
    return {"type": "function", "function": {**function, "description": tool.get("description", "")}}


def chat_tool_choice(choice: Any) -> Any:
    kind = choice.get("type") if isinstance(choice, dict) else None
    plain = {"auto": "auto", "any": "required", "none": "none"}
    if kind in plain:
        return plain[kind]
    if kind == "tool":
        return {"type": "function", "function": {"name": choice.get("name")}}
    raise BadRequest("tool_choice must be auto, any, none or a tool", "tool_choice")


def message_of(answer: dict[str, Any]) -> dict[str, Any]:
    """A chat completion as a Message."""
    choice = answer["choices"][0]
    message, content = choice["message"], []
    if message.get("reasoning_content"):
        content.append({"type": "thinking", "thinking": message["reasoning_content"], "signature": ""})
    if message.get("content"):
        content.append({"type": "text", "text": message["content"]})
    for call in message.get("tool_calls") or []:
        given = json.loads(call["function"]["arguments"] or "{}")
        content.append(
            {"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": given}
        )
    reason = STOP_REASONS.get(choice["finish_reason"], "end_turn")
    return {**head(answer), "content": content, "stop_reason": reason, "usage": usage_of(answer["usage"])}


def head(chunk: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": str(chunk.get("id", "")).replace("chatcmpl-", "msg_"),
        "type": "message",
        "role": "assistant",
        "model": chunk.get("model", ""),
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def usage_of(usage: dict[str, Any] | None) -> dict[str, int]:
    usage = usage or {}
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    return {
        "input_tokens": usage.get("prompt_tokens", 0) - cached,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.get("completion_tokens", 0),
    }


def error_of(status: int, message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": ERROR_KINDS.get(status, "api_error"), "message": message}}


class MessageEvents:
    """Turns the chunks of a streamed chat completion into the events of a streamed Message."""

    def __init__(self) -> None:
        self._index = -1
        self._open = ""
        self._reason: str | None = None

    def opened(self, chunk: dict[str, Any], model: str) -> bytes:
        message = {**head(chunk), "model": model, "usage": {"input_tokens": 0, "output_tokens": 0}}
        return event({"type": "message_start", "message": message})

    def of(self, chunk: dict[str, Any]) -> bytes:
        events = []
        for choice in chunk.get("choices", []):
            delta = choice.get("delta") or {}
            if delta.get("reasoning_content"):
                block = {"type": "thinking", "thinking": "", "signature": ""}
                piece = {"type": "thinking_delta", "thinking": delta["reasoning_content"]}
                events += [*self._block("thinking", block), self._delta(piece)]
            if delta.get("content"):
                piece = {"type": "text_delta", "text": delta["content"]}
                events += [*self._block("text", {"type": "text", "text": ""}), self._delta(piece)]
            for call in delta.get("tool_calls") or []:
                events += self._call(call)
            if choice.get("finish_reason"):
                self._reason = STOP_REASONS.get(choice["finish_reason"], "end_turn")
        return b"".join(events)

    def ended(self, usage: dict[str, Any] | None) -> bytes:
        delta = {"stop_reason": self._reason or "end_turn", "stop_sequence": None}
        ends = [*self._close(), event({"type": "message_delta", "delta": delta, "usage": usage_of(usage)})]
        return b"".join([*ends, event({"type": "message_stop"})])

    def _call(self, call: dict[str, Any]) -> Iterator[bytes]:
        function = call.get("function") or {}
        if function.get("name"):
            block = {"type": "tool_use", "id": call.get("id", ""), "name": function["name"], "input": {}}
            yield from self._block(f"tool {call['index']}", block)
        if function.get("arguments"):
            yield self._delta({"type": "input_json_delta", "partial_json": function["arguments"]})

    def _block(self, name: str, block: dict[str, Any]) -> Iterator[bytes]:
        if self._open == name:
            return
        yield from self._close()
        self._open, self._index = name, self._index + 1
        yield event({"type": "content_block_start", "index": self._index, "content_block": block})

    def _close(self) -> Iterator[bytes]:
        if self._open:
            self._open = ""
            yield event({"type": "content_block_stop", "index": self._index})

    def _delta(self, piece: dict[str, Any]) -> bytes:
        return event({"type": "content_block_delta", "index": self._index, "delta": piece})


def event(value: dict[str, Any]) -> bytes:
    return b"event: " + value["type"].encode() + b"\n" + sse.event(value)

"""One whole answer out of the chunks of a stream: upstream is always asked to stream, the client may not be."""

from __future__ import annotations

from typing import Any

HEAD_FIELDS = ("id", "created", "model", "system_fingerprint")
TEXT_FIELDS = ("content", "reasoning_content", "refusal")


class Assembler:
    """Collects the chunks of a streamed completion into the completion that they are pieces of."""

    def __init__(self, is_chat: bool) -> None:
        self._is_chat = is_chat
        self._head: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._usage: dict[str, Any] | None = None

    def add(self, chunk: dict[str, Any]) -> None:
        if not self._head:
            self._head = {key: chunk[key] for key in HEAD_FIELDS if key in chunk}
        if chunk.get("usage"):
            self._usage = chunk["usage"]
        for choice in chunk.get("choices", []):
            self._add_choice(choice)

    def result(self) -> dict[str, Any]:
        kind = "chat.completion" if self._is_chat else "text_completion"
        choices = [self._choices[index] for index in sorted(self._choices)]
        return {**self._head, "object": kind, "choices": choices, "usage": self._usage}

    def _add_choice(self, choice: dict[str, Any]) -> None:
        whole = self._choices.setdefault(choice["index"], self._empty(choice["index"]))
        if choice.get("finish_reason"):
            whole["finish_reason"] = choice["finish_reason"]
        if choice.get("logprobs"):
            whole["logprobs"] = whole["logprobs"] or {}
            for name, values in choice["logprobs"].items():
                whole["logprobs"].setdefault(name, []).extend(values or [])
        if self._is_chat:
            add_delta(whole["message"], choice.get("delta") or {})
        else:
            whole["text"] += choice.get("text") or ""

    def _empty(self, index: int) -> dict[str, Any]:
        answer = {"message": {"role": "assistant", "content": None}} if self._is_chat else {"text": ""}
        return {"index": index, **answer, "logprobs": None, "finish_reason": None}


def add_delta(message: dict[str, Any], delta: dict[str, Any]) -> None:
    for name in TEXT_FIELDS:
        if delta.get(name) is not None:
            message[name] = (message.get(name) or "") + delta[name]
    for call in delta.get("tool_calls") or []:
        add_tool_call(message.setdefault("tool_calls", []), call)


def add_tool_call(calls: list[dict[str, Any]], delta: dict[str, Any]) -> None:
    while len(calls) <= delta["index"]:
        calls.append({"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
    call = calls[delta["index"]]
    call["id"] = delta.get("id") or call["id"]
    function = delta.get("function") or {}
    call["function"]["name"] += function.get("name") or ""
    call["function"]["arguments"] += function.get("arguments") or ""

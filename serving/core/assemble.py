"""One whole answer out of the chunks of a stream: upstream is always asked to stream, the client may not be."""

from __future__ import annotations

from typing import Any

TEXT_FIELDS = ("content", "reasoning_content", "refusal")


class ChatAssembler:
    """Collects chat completion chunks into a chat completion."""

    def __init__(self) -> None:
        self._head: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self.usage: dict[str, Any] | None = None

    def add(self, chunk: dict[str, Any]) -> None:
        if not self._head:
            self._head = {
                key: chunk[key] for key in ("id", "created", "model", "system_fingerprint") if key in chunk
            }
        if chunk.get("usage"):
            self.usage = chunk["usage"]
        for choice in chunk.get("choices", []):
            self._add_choice(choice)

    def result(self) -> dict[str, Any]:
        choices = [self._choices[index] for index in sorted(self._choices)]
        return {**self._head, "object": "chat.completion", "choices": choices, "usage": self.usage}

    def _add_choice(self, choice: dict[str, Any]) -> None:
        whole = self._choices.setdefault(
            choice["index"],
            {
                "index": choice["index"],
                "message": {"role": "assistant", "content": None},
                "logprobs": None,
                "finish_reason": None,
            },
        )
        if choice.get("finish_reason"):
            whole["finish_reason"] = choice["finish_reason"]
        if choice.get("logprobs"):
            whole["logprobs"] = whole["logprobs"] or {"content": []}
            whole["logprobs"]["content"] += choice["logprobs"].get("content") or []
        add_delta(whole["message"], choice.get("delta") or {})


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

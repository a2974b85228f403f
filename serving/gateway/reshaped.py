"""Answers whose events are changed on their way, since the replica has another shape than the client asked for."""

from __future__ import annotations

from collections.abc import Callable

from serving.core import sse
from serving.core.logprobs import Change, PlainTexts, without_alternatives
from serving.core.openai import CHAT_PATH, Generation
from serving.gateway.answer import Answer


def shaped(answer: Answer, request: Generation) -> Answer:
    """The answer, or one around it that gives log probabilities the shape that was asked for."""
    alternatives = request.alternatives
    if alternatives is None or (alternatives and request.path == CHAT_PATH):
        return answer
    if request.path == CHAT_PATH:
        return Reshaped(answer, lambda: without_alternatives)
    return Reshaped(answer, lambda: PlainTexts(alternatives))


class Reshaped:
    """Opens every event that carries log probabilities; `begin` gives the change for one try at the answer."""

    def __init__(self, answer: Answer, begin: Callable[[], Change]) -> None:
        self.answer = answer
        self.begin = begin
        self.is_done = False
        self._change = begin()

    async def feed(self, events: bytes) -> None:
        await self.answer.feed(b"".join(self._changed(event) for event in sse.split(events)))
        self.is_done = self.answer.is_done

    def take(self, events: bytes) -> bool:
        return False  # a change that counts must see every event once

    def restart(self) -> None:
        self.answer.restart()
        self._change = self.begin()

    async def finish(self) -> None:
        await self.answer.finish()

    def _changed(self, event: bytes) -> bytes:
        if b'"logprobs":{' not in event:
            return event
        value = sse.payload(event)
        for choice in value.get("choices", []):
            self._change(choice)
        return sse.event(value)

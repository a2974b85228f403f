"""How an answer reaches its client: event by event as it is made, or whole at the end."""

from __future__ import annotations

from typing import Any, Protocol

from serving.core import sse
from serving.core.anthropic import MessageEvents, message_of
from serving.core.assemble import Assembler
from serving.core.openai import CHAT_PATH, Generation
from serving.gateway.http import EVENT_STREAM, Client
from serving.gateway.timeline import Timeline
from serving.upstream import ConnectionLost, Declined


class Answer(Protocol):
    """Takes the events of a replica until `is_done`."""

    is_done: bool

    async def feed(self, events: bytes) -> None: ...

    def take(self, events: bytes) -> bool:
        """Do with plain events at once what `feed` does; false, and nothing done, when that would have to wait."""

    async def finish(self) -> None: ...

    def restart(self) -> None:
        """Forget what a replica sent that did not finish."""


class StreamedAnswer:
    """Passes events on as bytes; only those that carry figures or faults are opened."""

    def __init__(self, client: Client, timeline: Timeline, request: Generation, shows_timing: bool) -> None:
        self.client = client
        self.timeline = timeline
        self.request = request
        self.shows_timing = shows_timing
        self.is_done = False
        self._alias = b""
        self._name = b""
        self._head: dict[str, Any] = {}
        self._has_told_way = False

    async def feed(self, events: bytes) -> None:
        if not self._alias:
            # Replicas answer under the alias by which we recognise their process.
            first = sse.payload(next(sse.split(events)))
            check_fault(first)
            self._alias = b'"model":' + sse.compact(first.get("model", ""))
            self._name = b'"model":' + sse.compact(self.request.model)
            self._head = {name: first[name] for name in ("id", "object", "created") if name in first}
        if not self.client.has_started:
            await self.client.start(200, EVENT_STREAM)
        if not sse.is_special(events):
            return await self.client.write(self._shown(events) + self._way())
        shown = []
        try:
            for event in sse.split(events):
                if event := self._opened(event) if sse.is_special(event) else event:
                    shown.append(self._shown(event))
        finally:
            # What comes before a fault is the client's, and what came together is one write.
            if shown:
                await self.client.write(b"".join(shown))
        return None

    def take(self, events: bytes) -> bool:
        return self.client.write_now(self._shown(events))

    def restart(self) -> None:
        assert not self.client.has_started, "what was sent cannot be taken back"
        self._alias = b""

    async def finish(self) -> None:
        await self.client.end()

    def _way(self) -> bytes:
        """Once, behind the first token: how it came to it, for those who may not stay until the end."""
        if self._has_told_way or not self.shows_timing or self.timeline.first_token is None:
            return b""
        self._has_told_way = True
        way = {"model": self.request.model, "choices": [], "e2llm": self.timeline.for_client()}
        return sse.event({**self._head, **way})

    def _shown(self, events: bytes) -> bytes:
        return events.replace(self._alias, self._name)

    def _opened(self, event: bytes) -> bytes:
        if sse.is_done(event):
            self.is_done = True
            return event
        value = sse.payload(event)
        check_fault(value)
        if not value.get("usage"):
            return event
        note_figures(self.timeline, value)
        if self.shows_timing:
            value["e2llm"] = self.timeline.for_client()
        elif not self.request.wants_usage:
            if not value["choices"]:
                return b""
            del value["usage"]
        return sse.event(value)


class WholeAnswer:
    """Collects the events and answers once; nothing has been sent before, so it may be tried again."""

    def __init__(self, client: Client, timeline: Timeline, request: Generation, shows_timing: bool) -> None:
        self.client = client
        self.timeline = timeline
        self.request = request
        self.shows_timing = shows_timing
        self.is_done = False
        self._whole = Assembler(request.path == CHAT_PATH)

    async def feed(self, events: bytes) -> None:
        for event in sse.split(events):
            if sse.is_done(event):
                self.is_done = True
                continue
            value = sse.payload(event)
            check_fault(value)
            if value.get("usage"):
                note_figures(self.timeline, value)
            self._whole.add(value)

    def take(self, events: bytes) -> bool:
        for event in sse.split(events):
            self._whole.add(sse.payload(event))
        return True

    def restart(self) -> None:
        self._whole = Assembler(self.request.path == CHAT_PATH)

    def result(self) -> dict[str, Any]:
        return {**self._whole.result(), "model": self.request.model}

    async def finish(self) -> None:
        extra = {"e2llm": self.timeline.for_client()} if self.shows_timing else {}
        await self.client.json(200, {**self.result(), **extra})


class WholeMessage(WholeAnswer):
    """The same as a Message of Anthropic's API."""

    def result(self) -> dict[str, Any]:
        return message_of(super().result())


class StreamedMessage:
    """A stream of Anthropic's events; every one is made anew, since none has the same shape."""

    def __init__(self, client: Client, timeline: Timeline, request: Generation) -> None:
        self.client = client
        self.timeline = timeline
        self.request = request
        self.is_done = False
        self._events = MessageEvents()
        self._usage: dict[str, Any] | None = None

    async def feed(self, events: bytes) -> None:
        for event in sse.split(events):
            if sse.is_done(event):
                self.is_done = True
                continue
            chunk = sse.payload(event)
            check_fault(chunk)
            if not self.client.has_started:
                await self.client.start(200, EVENT_STREAM)
                await self.client.write(self._events.opened(chunk, self.request.model))
            if chunk.get("usage"):
                note_figures(self.timeline, chunk)
                self._usage = chunk["usage"]
            if translated := self._events.of(chunk):
                await self.client.write(translated)

    def take(self, events: bytes) -> bool:
        if not self.client.takes_now:
            return False
        if pieces := b"".join(self._events.of(sse.payload(event)) for event in sse.split(events)):
            self.client.write_now(pieces)
        return True

    def restart(self) -> None:
        assert not self.client.has_started, "what was sent cannot be taken back"

    async def finish(self) -> None:
        await self.client.end(self._events.ended(self._usage))


def note_figures(timeline: Timeline, chunk: dict[str, Any]) -> None:
    """Write down what the replica counted, and put right in the chunk what a hand-over makes look like a cache."""
    usage, timings = chunk["usage"], chunk.get("timings") or {}
    details = usage.get("prompt_tokens_details") or {}
    timeline.prompt_tokens = usage.get("prompt_tokens")
    timeline.output_tokens = usage.get("completion_tokens")
    cached_tokens = timings.get("cache_n", details.get("cached_tokens", 0))
    timeline.timings = timings
    if timeline.handover is not None:
        timeline.handover.streamed(cached_tokens)
        cached_tokens = timeline.handover.reused_tokens(cached_tokens)
    timeline.cached_tokens = cached_tokens
    usage["prompt_tokens_details"] = {**details, "cached_tokens": cached_tokens}


def check_fault(value: dict[str, Any]) -> None:
    """A replica may end a stream with an error event."""
    error = value.get("error")
    if error is None:
        return
    if isinstance(error, dict) and isinstance(error.get("code"), int):
        raise Declined(error["code"], str(error.get("message", "")), str(error.get("type", "")), error)
    raise ConnectionLost(f"the replica ended its answer with an error: {error}")

"""How an answer reaches its client: event by event as it is made, or whole at the end."""

from __future__ import annotations

from typing import Any, Protocol

from serving.core import sse
from serving.core.assemble import ChatAssembler
from serving.gateway.http import EVENT_STREAM, Client
from serving.gateway.timeline import Timeline
from serving.upstream import ConnectionLost, Declined


class Answer(Protocol):
    """Takes the events of a replica until `is_done`."""

    is_done: bool

    async def feed(self, events: bytes) -> None: ...

    async def finish(self) -> None: ...

    def restart(self) -> None:
        """Forget what a replica sent that did not finish."""


class StreamedAnswer:
    """Passes events on as bytes; only those that carry figures or faults are opened."""

    def __init__(
        self, client: Client, timeline: Timeline, model: str, shows_usage: bool, shows_timing: bool
    ) -> None:
        self.client = client
        self.timeline = timeline
        self.model = model
        self.shows_usage = shows_usage
        self.shows_timing = shows_timing
        self.is_done = False
        self._alias = b""
        self._name = b""

    async def feed(self, events: bytes) -> None:
        if not self.client.has_started:
            # Replicas answer under the alias by which we recognise their process.
            first = sse.payload(next(sse.split(events)))
            check_fault(first)
            self._alias = b'"model":' + sse.compact(first.get("model", ""))
            self._name = b'"model":' + sse.compact(self.model)
            await self.client.start(200, EVENT_STREAM)
        events = events.replace(self._alias, self._name)
        if sse.is_special(events):
            for event in sse.split(events):
                await self._write(self._opened(event))
        else:
            await self._write(events)

    async def finish(self) -> None:
        await self.client.end()

    def restart(self) -> None:
        assert not self.client.has_started, "what was sent cannot be taken back"

    async def _write(self, events: bytes) -> None:
        if events:
            await self.client.write(events)

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
        return sse.event(value) if self.shows_usage or self.shows_timing else b""


class WholeAnswer:
    """Collects the events and answers once; nothing has been sent before, so it may be tried again."""

    def __init__(self, client: Client, timeline: Timeline, model: str, shows_timing: bool) -> None:
        self.client = client
        self.timeline = timeline
        self.model = model
        self.shows_timing = shows_timing
        self.is_done = False
        self._whole = ChatAssembler()

    async def feed(self, events: bytes) -> None:
        for event in sse.split(events):
            if sse.is_done(event):
                self.is_done = True
                continue
            value = sse.payload(event)
            check_fault(value)
            self._whole.add(value)
            if value.get("usage"):
                note_figures(self.timeline, value)

    def restart(self) -> None:
        self._whole = ChatAssembler()

    async def finish(self) -> None:
        result = {**self._whole.result(), "model": self.model}
        if self.shows_timing:
            result["e2llm"] = self.timeline.for_client()
        await self.client.json(200, result)


def note_figures(timeline: Timeline, chunk: dict[str, Any]) -> None:
    usage, timings = chunk["usage"], chunk.get("timings") or {}
    details = usage.get("prompt_tokens_details") or {}
    timeline.prompt_tokens = usage.get("prompt_tokens")
    timeline.output_tokens = usage.get("completion_tokens")
    timeline.cached_tokens = timings.get("cache_n", details.get("cached_tokens", 0))
    timeline.timings = timings
    if timeline.handover is not None:
        timeline.handover.streamed(timeline.cached_tokens or 0)


def check_fault(value: dict[str, Any]) -> None:
    """A replica may end a stream with an error event."""
    error = value.get("error")
    if error is None:
        return
    if isinstance(error, dict) and isinstance(error.get("code"), int):
        raise Declined(error["code"], str(error.get("message", "")), str(error.get("type", "")), error)
    raise ConnectionLost(f"the replica ended its answer with an error: {error}")

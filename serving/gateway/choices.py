"""Several answers to one request: each is generated as a request of its own, and they reach the client as one."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from serving.core import sse
from serving.gateway.answer import Answer, StreamedAnswer, WholeAnswer
from serving.gateway.generation import Call, Run
from serving.gateway.reshaped import shaped
from serving.gateway.timeline import Timeline

HEAD_FIELDS = ("id", "object", "created", "system_fingerprint")


class StreamedChoice(StreamedAnswer):
    """One choice among others of a stream; the figures and the end come once, after all of them."""

    def __init__(self, call: Call, index: int, head: dict[str, Any]) -> None:
        super().__init__(call.client, call.timeline, call.request, shows_timing=False)
        self.index = index
        self.head = head  # id, time and kind of the whole stream, as its first event has them

    async def finish(self) -> None:
        return

    def _shown(self, events: bytes) -> bytes:
        return super()._shown(b"".join(self._numbered(event) for event in sse.split(events)))

    def _numbered(self, event: bytes) -> bytes:
        value = sse.payload(event)
        if not self.head:
            self.head.update({name: value[name] for name in HEAD_FIELDS if name in value})
        value.update(self.head)
        for choice in value["choices"]:
            choice["index"] = self.index
        return sse.event(value)

    def _opened(self, event: bytes) -> bytes:
        opened = super()._opened(event)
        is_figures = b'"choices":[]' in opened
        return b"" if is_figures or sse.is_done(opened) else opened


class WholeChoice(WholeAnswer):
    """One choice among others of a whole answer."""

    def __init__(self, call: Call) -> None:
        super().__init__(call.client, call.timeline, call.request, shows_timing=False)

    async def finish(self) -> None:
        return


async def run_choices(call: Call) -> None:
    """Generate all choices side by side; when one fails, so does the request."""
    calls = [
        replace(call, timeline=timeline_of(call.timeline, index)) for index in range(call.request.choices)
    ]
    head: dict[str, Any] = {}
    answers = [
        StreamedChoice(one, index, head) if call.request.streams else WholeChoice(one)
        for index, one in enumerate(calls)
    ]
    try:
        async with asyncio.TaskGroup() as group:
            for one, answer in zip(calls, answers, strict=True):
                group.create_task(run_one(one, answer))
    except BaseExceptionGroup as faults:
        raise faults.exceptions[0] from None
    usage = usage_of([one.timeline for one in calls])
    if not call.request.streams:
        results = [answer.result() for answer in answers if isinstance(answer, WholeChoice)]
        choices = [{**result["choices"][0], "index": index} for index, result in enumerate(results)]
        await call.client.json(200, {**results[0], "choices": choices, "usage": usage})
        return
    figures = {**head, "model": call.request.model, "choices": [], "usage": usage}
    await call.client.end((sse.event(figures) if call.request.wants_usage else b"") + sse.DONE)


async def run_one(call: Call, answer: Answer) -> None:
    try:
        await Run(call, shaped(answer, call.request)).run()
    finally:
        call.timeline.ended = call.gateway.clock()


def timeline_of(whole: Timeline, index: int) -> Timeline:
    """The first choice is written down as the request; the others only lend their figures."""
    if index == 0:
        return whole
    return Timeline(
        f"{whole.request_id}-{index}", whole.received_at, whole.received, whole.deployment, whole.key_id
    )


def usage_of(timelines: list[Timeline]) -> dict[str, Any]:
    prompt = timelines[0].prompt_tokens or 0
    completion = sum(timeline.output_tokens or 0 for timeline in timelines)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": timelines[0].cached_tokens or 0},
    }

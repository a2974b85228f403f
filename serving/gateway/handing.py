"""Carries out a hand-over: prompt and save on the prefill replica, move, restore on the decode replica."""

from __future__ import annotations

import secrets
from typing import Any, Protocol

from serving import upstream
from serving.core import sse
from serving.core.handover import Handover, HandoverBroken
from serving.gateway.dispatcher import Clock
from serving.gateway.limits import Limits
from serving.gateway.prompt import Prompt
from serving.gateway.routes import Endpoint


class Mover(Protocol):
    """Whatever brings slot files from host to host."""

    async def pull(self, source: Endpoint, destination: Endpoint, filename: str) -> int: ...

    def remove(self, endpoint: Endpoint, filename: str) -> None: ...


def begin(prompt: Prompt, now: float) -> Handover:
    # The name is random: it is all that keeps one prompt's cache from being fetched for another.
    return Handover(prompt.token_count, f"{secrets.token_hex(16)}.kv", now)


async def prefill(
    handover: Handover, prompt: Prompt, source: Endpoint, slot: int, limits: Limits, clock: Clock
) -> None:
    """Compute all but the last prompt token on the prefill replica."""
    body = {
        "prompt": list(prompt.tokens[:-1]),
        "n_predict": 0,
        "id_slot": slot,
        "cache_prompt": True,
        "stream": True,  # only a streamed request is given up when its connection closes
    }
    seconds = limits.first_token_deadline(prompt.token_count)
    deadlines = upstream.Deadlines(limits.connect_seconds, seconds, seconds, limits.total_seconds)
    stream = await upstream.open_stream(source.target, "/completion", body, deadlines)
    try:
        last: dict[str, Any] = {}
        while events := await stream.events():
            for event in sse.split(events):
                answer = sse.payload(event)
                if "error" in answer:
                    raise HandoverBroken(f"the prefill replica: {answer['error']}")
                last = answer if answer.get("stop") else last
        if not last:
            raise HandoverBroken("the prefill replica stopped in the middle of the prompt")
    finally:
        stream.close()
    handover.prefilled(last.get("timings", {}).get("prompt_n"), clock())


async def save(handover: Handover, source: Endpoint, slot: int, limits: Limits, clock: Clock) -> None:
    answer = await upstream.call(
        source.target,
        "POST",
        f"/slots/{slot}?action=save",
        {"filename": handover.filename},
        limits.move_seconds,
    )
    handover.saved(int(answer["n_saved"]), int(answer["n_written"]), clock())


async def move(
    handover: Handover, mover: Mover, source: Endpoint, destination: Endpoint, clock: Clock
) -> None:
    handover.moved(await mover.pull(source, destination, handover.filename), clock())


async def restore(handover: Handover, destination: Endpoint, slot: int, limits: Limits, clock: Clock) -> None:
    answer = await upstream.call(
        destination.target,
        "POST",
        f"/slots/{slot}?action=restore",
        {"filename": handover.filename},
        limits.move_seconds,
    )
    handover.restored(int(answer["n_restored"]), clock())


async def erase(destination: Endpoint, slot: int, limits: Limits) -> None:
    """Forget what a failed restore may have left in the slot."""
    await upstream.call(destination.target, "POST", f"/slots/{slot}?action=erase", {}, limits.control_seconds)


async def is_slot_idle(endpoint: Endpoint, slot: int, limits: Limits) -> bool:
    slots = await upstream.call(endpoint.target, "GET", "/slots", None, limits.control_seconds)
    return not any(one["id"] == slot and one["is_processing"] for one in slots)

"""How a request ends: every fault in its timeline, and in the client's answer as the client's dialect has it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from serving import upstream
from serving.core import sse
from serving.core.anthropic import error_of
from serving.core.anthropic import event as anthropic_event
from serving.core.balancer import KeyBusy, Refused
from serving.gateway.errors import ApiError
from serving.gateway.gateway import Gateway
from serving.gateway.http import Client, ClientGone
from serving.gateway.timeline import Outcomes, Timeline

CLIENT_CLOSED = 499


async def watched(gateway: Gateway, client: Client, timeline: Timeline, work: Awaitable[None]) -> None:
    """Do the work, unless the client leaves; faults end up in the timeline and in the client's answer."""
    client.task = asyncio.current_task()
    assert client.task is not None, "a request is served in a task"
    gateway.clients.add(client)
    try:
        await work
    except asyncio.CancelledError:
        if not client.was_dropped:
            await tell(client, timeline, ApiError(503, "draining", "this gateway was stopped"))
            raise
        client.task.uncancel()
        timeline.fail(Outcomes.CANCELLED, CLIENT_CLOSED, client.was_dropped)
    except ClientGone:
        timeline.fail(Outcomes.CANCELLED, CLIENT_CLOSED, "the client left")
    except (ApiError, Refused, upstream.UpstreamError) as fault:
        await tell(client, timeline, translated(fault, client.request_id))
    finally:
        client.stop_watching()
        gateway.clients.discard(client)


async def tell(client: Client, timeline: Timeline, error: ApiError) -> None:
    """Before the first byte an error is a status; after it, an event in the stream and no [DONE]."""
    if client.has_started:
        timeline.fail(Outcomes.CUT, error.status, str(error))
        await client.end(interrupted(client, timeline, error))
        return
    outcome = (
        Outcomes.FAILED if error.status >= 500 and error.retry_after_seconds is None else Outcomes.REFUSED
    )
    timeline.fail(outcome, error.status, str(error))
    await client.refuse(error)


def interrupted(client: Client, timeline: Timeline, error: ApiError) -> bytes:
    if client.error_of is error_of:
        return anthropic_event(error_of(error.status, str(error)))
    told = {**error.body["error"], "code": "stream_interrupted", "cause": error.code}
    return sse.event({"error": told} | ({"e2llm": timeline.for_client()} if client.wants_timing else {}))


def translated(fault: Exception, request_id: str) -> ApiError:
    if isinstance(fault, ApiError):
        return fault
    if isinstance(fault, Refused):
        status, code = (429, "key_busy") if isinstance(fault, KeyBusy) else (503, "overloaded")
        return ApiError(status, code, str(fault), retry_after_seconds=fault.retry_after_seconds)
    if isinstance(fault, upstream.Declined) and fault.status == 400:
        too_long = fault.kind == "exceed_context_size_error"
        return ApiError(400, "context_length_exceeded" if too_long else "invalid_request", str(fault))
    if isinstance(fault, upstream.TooSlow):
        return ApiError(504, "replica_timeout", f"request {request_id}: the replica fell silent: {fault}")
    return ApiError(502, "replica_failed", f"request {request_id}: the replica failed: {fault}")

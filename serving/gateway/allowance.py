"""What a key may use: its tokens are reserved before a request runs and charged as they were when it has ended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from serving.core.rates import NeverFits, OverRate
from serving.gateway.errors import ApiError
from serving.gateway.gateway import Gateway
from serving.gateway.http import Client
from serving.gateway.keys import Caller
from serving.gateway.timeline import Timeline

LIMIT_HEADER = b"x-ratelimit-limit-tokens"
LEFT_HEADER = b"x-ratelimit-remaining-tokens"


@contextmanager
def charged(
    gateway: Gateway, client: Client, caller: Caller, timeline: Timeline, prompt_tokens: int
) -> Iterator[None]:
    """Holds the tokens of the prompt while the request runs, then charges prompt and answer as they came out."""
    reserve(gateway, client, caller, prompt_tokens)
    try:
        yield
    finally:
        prompt, output = used_tokens(timeline, prompt_tokens)
        settle(gateway, caller, prompt_tokens, prompt, output)


def reserve(gateway: Gateway, client: Client, caller: Caller, tokens: int) -> None:
    """429 with the time to come back when the key's tokens of this minute are used up."""
    limit, now = caller.tokens_per_minute, gateway.clock()
    if not limit:
        return
    try:
        gateway.rates.reserve(caller.key, limit, tokens, now)
    except NeverFits as error:
        raise ApiError(400, "prompt_over_key_limit", str(error)) from error
    except OverRate as error:
        raise ApiError(
            429, "rate_limit_exceeded", str(error), retry_after_seconds=error.retry_after_seconds
        ) from error
    if not any(name == LIMIT_HEADER for name, _ in client.extra_headers):
        left = gateway.rates.left(caller.key, limit, now)
        client.extra_headers += [(LIMIT_HEADER, str(limit).encode()), (LEFT_HEADER, str(left).encode())]


def settle(gateway: Gateway, caller: Caller, reserved: int, prompt: int, output: int) -> None:
    if caller.tokens_per_minute:
        now = gateway.clock()
        gateway.rates.settle(caller.key, caller.tokens_per_minute, reserved, prompt + output, now)
    gateway.usage.add(caller.key_id, prompt, output)


def used_tokens(timeline: Timeline, prompt_tokens: int) -> tuple[int, int]:
    """As the replica counted them; of an answer that was cut, the prompt once begun and the events that came."""
    if timeline.prompt_tokens is not None and timeline.output_tokens is not None:
        return timeline.prompt_tokens, timeline.output_tokens
    return (0 if timeline.bound is None else prompt_tokens), timeline.streamed_events

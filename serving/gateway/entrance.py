"""Who comes in: the key and its scope, and how many requests a key or an address may have open."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from django.utils import timezone

from accounts.core.key_terms import Scope
from serving.core.balancer import KeyBusy
from serving.core.crowd import Crowd
from serving.gateway.addresses import client_address, is_within
from serving.gateway.errors import ApiError
from serving.gateway.gateway import Gateway
from serving.gateway.http import Client
from serving.gateway.keys import Caller
from serving.gateway.timeline import Outcomes, Timeline

RETRY_SECONDS = 1.0
STAND_BY_SECONDS = 2.0
REFUSED = (403, 429)


def caller_of(gateway: Gateway, client: Client, scope: Scope | None = None) -> Caller:
    """Who calls, or a 401; a 403 when the key is not for what is asked. Both are written down."""
    key_id: int | None = None
    try:
        caller = known_caller(gateway, client, scope)
        key_id = caller.key_id
        if scope is not None:
            with refusals_counted(gateway, caller):
                caller.check_scope(scope)
    except ApiError as error:
        if error.status in (401, 403):
            note_refusal(gateway, client, key_id, error)
        raise
    return caller


def known_caller(gateway: Gateway, client: Client, scope: Scope | None) -> Caller:
    if client.has_query_key:
        raise ApiError(401, "key_in_url", "a key in the address ends up in logs; send it as a header")
    caller = gateway.keys.caller(client.authorization())
    if scope != Scope.METRICS and (refusal := gateway.refusal()):
        raise ApiError(503, "standing_by", refusal, retry_after_seconds=STAND_BY_SECONDS)
    return caller


def note_refusal(gateway: Gateway, client: Client, key_id: int | None, error: ApiError) -> None:
    timeline = Timeline(client.request_id, timezone.now(), gateway.clock(), key_id=key_id)
    timeline.fail(Outcomes.REFUSED, error.status, str(error))
    gateway.ended(timeline)


@contextmanager
def admitted(gateway: Gateway, caller: Caller) -> Iterator[None]:
    """Counts a request of a key while it is open, and 429 for one too many."""
    with refusals_counted(gateway, caller):
        if not caller.max_concurrent:
            yield
            return
        with one_more(gateway.callers, caller.key, caller.max_concurrent, lambda: busy(caller)):
            yield


def busy(caller: Caller) -> ApiError:
    text = f"this key may have {caller.max_concurrent} requests at once, and has them"
    return ApiError(429, "key_busy", text, retry_after_seconds=RETRY_SECONDS)


@contextmanager
def visiting(gateway: Gateway, peer: str, forwarded: str) -> Iterator[None]:
    """Counts a request of an address behind a proxy; connections that come directly are counted as such."""
    limits = gateway.limits
    if not is_within(peer, limits.proxies):
        yield
        return
    address = client_address(peer, forwarded, limits.proxies)
    with one_more(gateway.visitors, address, limits.connections_per_address, crowded):
        yield


def crowded() -> ApiError:
    text = "your address has as many connections open as it may"
    return ApiError(429, "too_many_connections", text, retry_after_seconds=RETRY_SECONDS)


@contextmanager
def one_more(crowd: Crowd, name: str, limit: int, refusal: Callable[[], ApiError]) -> Iterator[None]:
    if crowd.count(name) >= limit:
        raise refusal()
    crowd.enter(name)
    try:
        yield
    finally:
        crowd.leave(name)


@contextmanager
def refusals_counted(gateway: Gateway, caller: Caller) -> Iterator[None]:
    try:
        yield
    except (ApiError, KeyBusy) as fault:
        if isinstance(fault, KeyBusy) or fault.status in REFUSED:
            gateway.usage.add(caller.key_id, refusals=1)
        raise

"""What the gateway tells open pages. A message is a hint: the rows are the truth."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, TypedDict

import redis
from channels.layers import get_channel_layer
from django.conf import settings
from redis import asyncio as redis_asyncio

log = logging.getLogger(__name__)

TRAFFIC_GROUP = "serving.traffic"
ROUTES_CHANNEL = "e2llm:routes"  # any message on it makes every gateway read keys and routes again
SUSPECTS_KEY = "e2llm:suspects"  # hash of replica id -> reason, kept until the reconciler takes it
PUBLISH_TIMEOUT_SECONDS = 2.0


class ReplicaLoad(TypedDict):
    """One replica in one second; `waiting` counts the queue it shares with the replicas of its role."""

    replica: int
    label: str
    role: str
    waiting: int
    running: int
    slots: int
    in_service: bool


class TrafficTick(TypedDict):
    """What a gateway looks like, once a second."""

    type: Literal["traffic.tick"]
    at: str
    gateway: str
    waiting: int
    running: int
    slots: int
    output_tokens: int
    replicas: list[ReplicaLoad]


class RequestEnded(TypedDict):
    """The timeline of one request, as its row will have it."""

    type: Literal["request.ended"]
    request_id: str
    deployment: int | None
    received_at: str
    outcome: str
    status: int
    error: str
    prefill_replica: str
    decode_replica: str
    handover: str
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    queued_seconds: float | None
    prefill_seconds: float | None
    handover_seconds: float | None
    first_token_seconds: float | None
    total_seconds: float


class ReplicaSuspect(TypedDict):
    """A replica that failed a request by its own fault; whoever watches the processes should look at it."""

    type: Literal["replica.suspect"]
    replica: int
    reason: str


TrafficEvent = TrafficTick | RequestEnded | ReplicaSuspect


def publish_routes() -> None:
    """Tell every gateway that replicas or keys have changed; one that misses it reads them within seconds."""
    try:
        with redis.Redis.from_url(settings.REDIS_URL, socket_timeout=PUBLISH_TIMEOUT_SECONDS) as client:
            client.publish(ROUTES_CHANNEL, "changed")
    except (redis.RedisError, OSError) as error:
        log.warning("gateways were not told about changed replicas: %s", error)


async def note_suspect(replica: int, reason: str) -> None:
    """Ask the reconciler to look at a replica: it may hang although its processes run."""
    try:
        limit = PUBLISH_TIMEOUT_SECONDS
        async with redis_asyncio.Redis.from_url(settings.REDIS_URL, socket_timeout=limit) as client:
            await client.hset(SUSPECTS_KEY, str(replica), reason[:300])
    except (redis.RedisError, OSError) as error:
        log.warning("the reconciler was not told about replica %d: %s", replica, error)


def take_suspects() -> dict[int, str]:
    """Replicas that failed requests since the last call, with the reasons."""
    try:
        with redis.Redis.from_url(settings.REDIS_URL, socket_timeout=PUBLISH_TIMEOUT_SECONDS) as client:
            found, _ = client.pipeline().hgetall(SUSPECTS_KEY).delete(SUSPECTS_KEY).execute()
    except (redis.RedisError, OSError) as error:
        log.warning("the list of suspect replicas cannot be read: %s", error)
        return {}
    return {int(replica): reason.decode() for replica, reason in found.items()}


@contextmanager
def only_one(name: str, longest_seconds: float) -> Iterator[bool]:
    """Whether this caller is the only one inside; a holder that died lets go after `longest_seconds`.

    Nobody is while Redis does not answer, since nobody can know of the others.
    """
    key, token = f"e2llm:only-one:{name}", secrets.token_hex(8)
    with redis.Redis.from_url(settings.REDIS_URL, socket_timeout=PUBLISH_TIMEOUT_SECONDS) as client:
        held = take(client, key, token, longest_seconds)
        try:
            yield held
        finally:
            if held:
                let_go(client, key, token)


def take(client: redis.Redis, key: str, token: str, longest_seconds: float) -> bool:
    try:
        return bool(client.set(key, token, nx=True, px=int(longest_seconds * 1000)))
    except (redis.RedisError, OSError) as error:
        log.warning("%s is left out until Redis answers again: %s", key, error)
        return False


def let_go(client: redis.Redis, key: str, token: str) -> None:
    try:
        if client.get(key) == token.encode():
            client.delete(key)
    except (redis.RedisError, OSError) as error:
        log.warning("%s stays taken until it runs out: %s", key, error)


async def publish(*news: TrafficEvent) -> None:
    """Send events to the pages that watch the traffic; a consumer gets each as `traffic_event(message)`."""
    layer = get_channel_layer()
    if layer is None:
        return
    try:
        async with asyncio.timeout(PUBLISH_TIMEOUT_SECONDS):
            for event in news:
                await layer.group_send(TRAFFIC_GROUP, {"type": "traffic.event", "event": dict(event)})
    except (redis.RedisError, OSError) as error:
        log.warning("a live update of the traffic was not sent: %s", str(error) or "Redis is silent")

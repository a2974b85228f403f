"""Requests that come or wait while a deployment starts or is replaced: they wait as they would for a slot."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from serving.core.balancer import NoReplica, QueueFull
from serving.gateway.errors import ApiError
from serving.gateway.gateway import Gateway
from serving.gateway.http import Client
from serving.gateway.routes import Route
from serving.gateway.timeline import Timeline

LOOK_SECONDS = 0.25


async def served(
    gateway: Gateway,
    client: Client,
    timeline: Timeline,
    model: str,
    work: Callable[[Route], Awaitable[None]],
) -> None:
    """Do the work on the route to a model; again on the one that replaces it while the request waits there."""
    while True:
        route = await route_to(gateway, model)
        try:
            return await work(route)
        except NoReplica:
            if client.has_started or route.standing or not gateway.routes.is_replaced(route):
                raise
            timeline.start_over()


async def route_to(gateway: Gateway, model: str) -> Route:
    """The route to a model; while its deployment starts, the one that is there when it has started.

    ApiError 404 for a name that nobody knows and 503 for a model that does not come; QueueFull as in the queue.
    """
    route = gateway.routes.find(model)
    if route.is_served or not route.is_starting:
        return route
    if gateway.arriving >= gateway.limits.waiting:
        text = f"{gateway.arriving} requests wait for a deployment that starts"
        raise QueueFull(text, route.balancer.retry_after_seconds())
    gateway.arriving += 1
    try:
        async with asyncio.timeout(gateway.limits.queue_seconds):
            while route.is_starting and not route.is_served:
                await asyncio.sleep(LOOK_SECONDS)
                route = gateway.routes.find(model)
    except TimeoutError:
        text = f"the deployment of {model!r} did not start within {gateway.limits.queue_seconds:g} s"
        raise ApiError(503, "queue_timeout", text, retry_after_seconds=LOOK_SECONDS) from None
    finally:
        gateway.arriving -= 1
    return route

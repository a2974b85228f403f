"""What a job tells open pages. A message is a hint: the rows are the truth."""

import asyncio
import logging
from typing import Any, TypedDict

import redis
from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer

log = logging.getLogger(__name__)

PUBLISH_SECONDS = 2.0  # a stalled Redis must not hold up the heartbeat of a job


class Delta(TypedDict):
    """Everything that changed since the last delta of the same job, in order."""

    type: str
    items: list[dict[str, Any]]


def group(job_id: int) -> str:
    return f"job.{job_id}"


def publish(job_id: int, items: list[dict[str, Any]]) -> None:
    """Send `items`, each with its own `type` and `seq`, to the pages that watch the job."""
    layer = get_channel_layer()
    if layer is None or not items:
        return
    delta: Delta = {"type": "job.delta", "items": items}
    try:
        async_to_sync(_send)(layer, group(job_id), delta)
    except (redis.RedisError, OSError) as error:
        log.warning("live update of job %s was not sent: %s", job_id, error)


async def _send(layer: Any, name: str, delta: Delta) -> None:
    async with asyncio.timeout(PUBLISH_SECONDS):
        await layer.group_send(name, delta)

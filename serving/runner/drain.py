"""Let running answers end before a replica is stopped."""

from __future__ import annotations

import asyncio
import time

from asgiref.sync import async_to_sync

from inventory import upstream
from inventory.upstream import UpstreamError
from jobs.progress import Progress
from serving.models import Deployment, Replica
from serving.runner import states

DRAIN_SECONDS = 30.0
LOOK_SECONDS = 0.5
ANSWER_SECONDS = 2.0


def drain(progress: Progress, deployment: Deployment) -> None:
    """New requests go elsewhere at once; those that run get 30 s."""
    ready = list(deployment.replicas.filter(state=Replica.States.READY))
    for replica in ready:
        states.set_replica(replica, Replica.States.DRAINING)
    end = time.monotonic() + DRAIN_SECONDS
    while ready and time.monotonic() < end:
        progress.check()
        busy = async_to_sync(count_busy)(ready)
        if not busy:
            return
        progress.report(f"{busy} running answers; waiting up to {end - time.monotonic():.0f} s more")
        time.sleep(LOOK_SECONDS)


async def count_busy(replicas: list[Replica]) -> int:
    return sum(await asyncio.gather(*(busy_slots(replica) for replica in replicas)))


async def busy_slots(replica: Replica) -> int:
    """Slots at work; a replica that does not answer has nothing that could be waited for."""
    if replica.host is None or replica.port is None:
        return 0
    try:
        async with upstream.open_server(
            replica.port, replica.api_key, host=replica.host, timeout_seconds=ANSWER_SECONDS
        ) as server:
            return sum(bool(slot["is_processing"]) for slot in await server.slots())
    except UpstreamError:
        return 0

"""Let running answers end before a replica is stopped."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from asgiref.sync import async_to_sync

from inventory import upstream
from inventory.upstream import UpstreamError
from jobs.core.errors import Cancelled
from jobs.progress import Progress
from serving.models import Replica
from serving.runner import states

DRAIN_SECONDS = 30.0
LOOK_SECONDS = 0.5
ANSWER_SECONDS = 2.0


def drain(progress: Progress, replicas: Iterable[Replica]) -> str:
    """New requests go elsewhere at once, those that run get 30 s; returns in words how that ended."""
    ready = [replica for replica in replicas if replica.state == Replica.States.READY]
    for replica in ready:
        states.set_replica(replica, Replica.States.DRAINING)
    end = time.monotonic() + DRAIN_SECONDS
    while busy := async_to_sync(count_busy)(ready):
        check(progress, ready)
        left_seconds = end - time.monotonic()
        if left_seconds <= 0:
            return f"{answers(busy)} cut off after {DRAIN_SECONDS:.0f} s"
        progress.report(f"{answers(busy)} under way; waiting up to {left_seconds:.0f} s more")
        time.sleep(LOOK_SECONDS)
    return "no answer was cut off"


def check(progress: Progress, drained: list[Replica]) -> None:
    """Raise Cancelled when a person thought better of it; the replicas then take requests again."""
    try:
        progress.check()
    except Cancelled:
        for replica in drained:
            states.set_replica(replica, Replica.States.READY)
        raise


def answers(count: int) -> str:
    return f"{count} answer{'' if count == 1 else 's'}"


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

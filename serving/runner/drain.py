"""Let running answers end before a replica is stopped."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from datetime import timedelta

from asgiref.sync import async_to_sync
from django.utils import timezone

from inventory import upstream
from inventory.upstream import UpstreamError
from jobs.core.errors import Cancelled
from jobs.progress import Progress
from serving.models import Replica, RequestSample, TrafficSample
from serving.runner import states

DRAIN_SECONDS = 30.0
LOOK_SECONDS = 0.5
ANSWER_SECONDS = 2.0
JUST_NOW = timedelta(minutes=1)


def drain(progress: Progress, replicas: Iterable[Replica]) -> str:
    """New requests go elsewhere at once, those that run get 30 s; returns in words how that ended."""
    chosen = list(replicas)
    ready = [replica for replica in chosen if replica.state == Replica.States.READY]
    failed = [replica for replica in chosen if replica.state == Replica.States.FAILED]
    lost = sum(map(lost_answers, failed))
    for replica in ready:
        states.set_replica(replica, Replica.States.DRAINING)
    end = time.monotonic() + DRAIN_SECONDS
    running: dict[int, int] = {}
    while busy := look(ready, running):
        check(progress, ready)
        left_seconds = end - time.monotonic()
        if left_seconds <= 0:
            return " and ".join(
                [f"{answers(busy)} cut off after {DRAIN_SECONDS:.0f} s", *words_of_lost(lost)]
            )
        progress.report(f"{answers(busy)} under way; waiting up to {left_seconds:.0f} s more")
        time.sleep(LOOK_SECONDS)
    lost += sum(running.values())
    return "".join(words_of_lost(lost)) or "no answer was cut off"


def words_of_lost(count: int) -> list[str]:
    if not count:
        return []
    return [f"{answers(count)} cut off, since what made {'it' if count == 1 else 'them'} had failed"]


def look(replicas: list[Replica], running: dict[int, int]) -> int:
    """Slots at work on replicas that answer; `running` keeps what was last seen on those that no longer do."""
    busy = dict(zip((one.pk for one in replicas), async_to_sync(count_busy)(replicas), strict=True))
    running.update({replica: count for replica, count in busy.items() if count is not None})
    return sum(count or 0 for count in busy.values())


def lost_answers(replica: Replica) -> int:
    """Answers that a replica's failure cut a moment ago, and those that its end is going to cut."""
    now = timezone.now()
    cut = RequestSample.objects.filter(
        decode_replica=replica, outcome=RequestSample.Outcomes.CUT, received_at__gt=now - timedelta(hours=1)
    )
    ended = [
        at + timedelta(seconds=seconds) for at, seconds in cut.values_list("received_at", "total_seconds")
    ]
    last = TrafficSample.objects.filter(at__gt=now - JUST_NOW).first()
    loads = last.replicas if last else []
    under_way = sum(load["running"] for load in loads if load["replica"] == replica.pk)
    return under_way + sum(end > now - JUST_NOW for end in ended)


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


async def count_busy(replicas: list[Replica]) -> list[int | None]:
    return await asyncio.gather(*(busy_slots(replica) for replica in replicas))


async def busy_slots(replica: Replica) -> int | None:
    """Slots at work; None of a replica that does not answer: it has nothing that could be waited for."""
    if replica.host is None or replica.port is None:
        return 0
    try:
        async with upstream.open_server(
            replica.port, replica.api_key, host=replica.host, timeout_seconds=ANSWER_SECONDS
        ) as server:
            return sum(bool(slot["is_processing"]) for slot in await server.slots())
    except UpstreamError:
        return None

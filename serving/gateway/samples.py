"""Keeps what the gateway saw: rows in batches, live figures once a second."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from datetime import datetime

from asgiref.sync import sync_to_async
from django.db import Error as DatabaseFault
from django.db import IntegrityError, transaction
from django.utils import timezone

from serving import events
from serving.gateway.routes import Route, Routes
from serving.gateway.timeline import Timeline, storable
from serving.models import RequestSample, RequestText, TrafficSample

log = logging.getLogger(__name__)

ROWS_KEPT = 10_000  # while the database does not take them
REQUESTS_PER_SECOND = 100  # timelines kept of one second; all of them are counted
STRANGER = 401  # the status of a request without a key that is known
STRANGERS_PER_SECOND = 10  # rows of such requests: whoever has no key must not fill the disk
IDLE_SECONDS = 10.0


class Recorder:
    """Collects in memory; `flush` writes, and is called by whoever keeps time."""

    def __init__(self, gateway_name: str) -> None:
        self.gateway_name = gateway_name
        self._ended: list[Timeline] = []
        self._traffic: list[TrafficSample] = []
        self._last_written: datetime | None = None
        self._was_busy = True
        self.skipped = 0
        self._strangers = 0  # since the last writing

    def add(self, timeline: Timeline) -> None:
        self._strangers += timeline.status == STRANGER
        is_flood = timeline.status == STRANGER and self._strangers > STRANGERS_PER_SECOND
        if len(self._ended) < REQUESTS_PER_SECOND and not is_flood:
            self._ended.append(timeline)
        else:
            self.skipped += 1

    def tick(self, routes: Routes, output_tokens: int) -> events.TrafficTick:
        """The last second as an event; its row is kept too, seldom while nothing happens."""
        now = timezone.now()
        loads = [load for route in routes.by_deployment.values() for load in replica_loads(route)]
        balancers = [route.balancer for route in routes.by_deployment.values()]
        sample = TrafficSample(
            at=now,
            gateway=self.gateway_name,
            waiting=sum(len(balancer.waiting) for balancer in balancers),
            running=sum(len(balancer.open) - len(balancer.waiting) for balancer in balancers),
            slots=sum(load["slots"] for load in loads),
            output_tokens=output_tokens,
            replicas=loads,
        )
        busy = bool(sample.waiting or sample.running or output_tokens)
        idle_long = self._last_written is None or (now - self._last_written).total_seconds() >= IDLE_SECONDS
        if busy or self._was_busy or idle_long:
            self._traffic.append(sample)
            self._last_written = now
        self._was_busy = busy
        return {
            "type": "traffic.tick",
            "at": now.isoformat(),
            "gateway": self.gateway_name,
            "waiting": sample.waiting,
            "running": sample.running,
            "slots": sample.slots,
            "output_tokens": output_tokens,
            "replicas": loads,
        }

    async def flush(self) -> list[Timeline]:
        """Write what has been collected; the timelines that were, for the live pages."""
        ended, self._ended, self._strangers = self._ended, [], 0
        traffic, self._traffic = self._traffic, []
        try:
            await sync_to_async(write)(ended, traffic)
        except DatabaseFault as error:
            log.warning("%d request rows wait for the database: %s", len(ended), error)
            self._ended = (ended + self._ended)[-ROWS_KEPT:]
            self._traffic = (traffic + self._traffic)[-ROWS_KEPT:]
            return []
        return ended


def write(ended: Iterable[Timeline], traffic: Iterable[TrafficSample]) -> None:
    ended = list(ended)
    rows = [timeline.row() for timeline in ended]
    texts = [
        RequestText(sample_id=timeline.request_id, prompt=storable(timeline.prompt, len(timeline.prompt)))
        for timeline in ended
        if timeline.prompt
    ]
    try:
        with transaction.atomic():
            RequestSample.objects.bulk_create(rows, ignore_conflicts=True)
            RequestText.objects.bulk_create(texts, ignore_conflicts=True)
    except IntegrityError:
        for row in rows:
            write_one(row)
    TrafficSample.objects.bulk_create(traffic)


def write_one(row: RequestSample) -> None:
    """A deployment or key may be deleted while its last requests end; those rows go with it."""
    try:
        with transaction.atomic():
            row.save(force_insert=True)
    except IntegrityError as error:
        log.info("the row of request %s was not kept: %s", row.request_id, error)


def replica_loads(route: Route) -> list[events.ReplicaLoad]:
    now = route.dispatcher.clock()
    waiting = Counter(
        "prefill" if ticket.phase == "prefill" else "decode" for ticket in route.balancer.waiting
    )
    return [
        {
            "replica": backend.replica,
            "label": route.endpoints[backend.replica].label,
            "role": backend.role,
            "waiting": waiting["prefill" if backend.role == "prefill" else "decode"],
            "running": backend.running,
            "slots": backend.slots,
            "in_service": backend.takes(now),
        }
        for backend in route.balancer.backends.values()
    ]


def request_ended(timeline: Timeline) -> events.RequestEnded:
    return {
        "type": "request.ended",
        "request_id": timeline.request_id,
        "deployment": timeline.deployment,
        "received_at": timeline.received_at.isoformat(),
        "outcome": str(timeline.outcome),
        "status": timeline.status,
        "error": timeline.error,
        "prefill_replica": timeline.prefill.label if timeline.prefill else "",
        "decode_replica": timeline.decode.label if timeline.decode else "",
        "handover": str(timeline.handover_outcome),
        "prompt_tokens": timeline.prompt_tokens,
        "cached_tokens": timeline.cached_tokens,
        "output_tokens": timeline.output_tokens,
        "queued_seconds": timeline.queued_seconds,
        "prefill_seconds": timeline.prefill_seconds,
        "handover_seconds": timeline.handover_seconds,
        "first_token_seconds": timeline.first_token_seconds,
        "total_seconds": timeline.total_seconds,
    }

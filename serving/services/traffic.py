"""What the traffic page and the workload form read: samples over a range, and requests that match a filter."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from statistics import median
from typing import Any

from django.db.models import Count, F, Q, QuerySet
from django.utils import timezone

from serving.charts import traffic
from serving.charts.traffic import Point, Range, Series
from serving.core.tally import Look, Tally, total
from serving.models import Deployment, RequestSample, TrafficSample
from serving.services import roll_ups
from serving.services.roll_ups import Groups, bucket

MAX_REQUESTS = 4_000
MAX_SAMPLES_A_STEP = 10
SINGLE_REQUESTS_UP_TO = timedelta(hours=1)
COLUMNS = ("gateway", "at", "waiting", "running", "slots", "output_tokens", "replicas")


@dataclass(frozen=True)
class Requests:
    """The requests of a range, added up by step and way.

    `every` is above 1 when only each so-many-th was looked at; `counts` counts all of them.
    """

    groups: Groups
    every: int
    counts: Tally

    def by_step(self) -> dict[datetime, Tally]:
        return {at: total(self.groups[at].values()) for at in sorted(self.groups)}


def requests_of(range_: Range, now: datetime) -> Requests:
    """From the rows of a short range, from roll-ups of a long one."""
    start, step = now - range_.span, traffic.chart_step(range_)
    if range_.span > SINGLE_REQUESTS_UP_TO:
        groups = roll_ups.since(start, step)
        return Requests(groups, 1, total(tally for ways in groups.values() for tally in ways.values()))
    within = RequestSample.objects.filter(received_at__gt=start).order_by()
    counts = counts_of(within)
    every = -(-counts.requests // MAX_REQUESTS) or 1
    looked_at = within.alias(rest=F("id") % every).filter(rest=0) if every > 1 else within
    looks = (Look(*row) for row in looked_at.values_list(*roll_ups.COLUMNS))
    return Requests(roll_ups.grouped(looks, step), every, counts)


def with_counts(looked_at: Tally, counts: Tally) -> Tally:
    """Shares and times of the requests that were looked at, with the counts of all."""
    counted = {name: getattr(counts, name) for name in ("requests", "hits", "fallbacks", "errors", "refused")}
    return replace(looked_at, **counted)


def counts_of(within: QuerySet[RequestSample]) -> Tally:
    outcomes, handovers = RequestSample.Outcomes, RequestSample.Handovers
    found = within.aggregate(
        requests=Count("pk"),
        hits=Count("pk", filter=Q(handover=handovers.HIT)),
        fallbacks=Count("pk", filter=Q(handover=handovers.FALLBACK)),
        errors=Count("pk", filter=Q(outcome__in=[outcomes.FAILED, outcomes.CUT])),
        refused=Count("pk", filter=Q(outcome=outcomes.REFUSED)),
    )
    return Tally(**found)


def points(rows: Sequence[tuple[Any, ...]], range_: Range) -> list[Point]:
    """Samples of all gateways added up, then averaged over the steps of the range."""
    groups: dict[datetime, list[tuple[Any, ...]]] = defaultdict(list)
    for row in rows:
        groups[bucket(row[1], range_.step)].append(row)
    return [point(at, own) for at, own in groups.items()]


def samples_of(range_: Range, now: datetime) -> list[tuple[Any, ...]]:
    """Rows of COLUMNS, the oldest first; of a long range only some."""
    samples = thinned(TrafficSample.objects.filter(at__gt=now - range_.span), range_)
    return list(samples.order_by("at").values_list(*COLUMNS))


def thinned(samples: QuerySet[TrafficSample], range_: Range) -> QuerySet[TrafficSample]:
    """A few samples a step, picked by number: a week of seconds is half a million rows to read."""
    first, last = samples.order_by("at").first(), samples.order_by("-at").first()
    if first is None or last is None:
        return samples.none()
    wanted = MAX_SAMPLES_A_STEP * int(range_.span / range_.step)
    every = (last.pk - first.pk + 1) // wanted
    if every <= 1:
        return samples
    return TrafficSample.objects.filter(pk__in=range(first.pk, last.pk + 1, every))


def point(at: datetime, rows: Sequence[tuple[Any, ...]]) -> Point:
    """Gateways share the replicas: their queues and requests add up, their slots are the same ones."""
    per_gateway: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
    for row in rows:
        per_gateway[row[0]].append(row)

    def mean(column: int) -> list[float]:
        return [sum(row[column] for row in own) / len(own) for own in per_gateway.values()]

    return Point(at, sum(mean(2)), sum(mean(3)), max(mean(4)), sum(mean(5)))


def replica_series(
    rows: Sequence[tuple[Any, ...]], range_: Range
) -> tuple[dict[str, Series], dict[str, str]]:
    """Queue length per replica, averaged over the steps of the range; and the replicas' roles."""
    waiting: dict[str, dict[datetime, list[int]]] = defaultdict(lambda: defaultdict(list))
    roles: dict[str, str] = {}
    for row in rows:
        at = bucket(row[1], range_.step)
        for load in row[-1]:
            label = load.get("label") or f"replica {load['replica']}"
            waiting[label][at].append(load["waiting"])
            roles[label] = load.get("role", "")
    series: dict[str, Series] = {
        label: [(at, sum(counts) / len(counts)) for at, counts in steps.items()]
        for label, steps in waiting.items()
    }
    return series, roles


def latest_sample() -> TrafficSample | None:
    """The last look of a gateway; none when it is so old that a gateway which runs would have written a newer one."""
    return TrafficSample.objects.filter(at__gt=timezone.now() - traffic.LONGEST_SILENCE).first()


@dataclass(frozen=True)
class RequestFilter:
    """What the request table shows."""

    outcome: str = ""
    handover: str = ""
    deployment: int | None = None
    words: str = ""


def matching(wanted: RequestFilter) -> QuerySet[RequestSample]:
    rows = RequestSample.objects.select_related(
        "deployment", "api_key", "prefill_replica__deployment", "decode_replica__deployment"
    )
    if wanted.outcome:
        rows = rows.filter(outcome=wanted.outcome)
    if wanted.handover:
        rows = rows.filter(handover=wanted.handover)
    if wanted.deployment:
        rows = rows.filter(deployment=wanted.deployment)
    if wanted.words:
        rows = rows.filter(Q(request_id__icontains=wanted.words) | Q(error__icontains=wanted.words))
    return rows


def recent_requests(deployment: Deployment) -> list[RequestSample]:
    """Requests of the last hour, for measured beside predicted."""
    since = timezone.now() - timedelta(hours=1)
    return list(deployment.requests.filter(received_at__gt=since).order_by("-received_at")[:500])


def workload_of_last_hour() -> dict[str, Any] | None:
    """Input and output tokens and arrival interval as observed; None when too little was asked."""
    since = timezone.now() - timedelta(hours=1)
    answered = RequestSample.objects.filter(received_at__gt=since, outcome=RequestSample.Outcomes.OK)
    rows = list(answered.order_by("received_at").values_list("received_at", "prompt_tokens", "output_tokens"))
    if len(rows) < 5:
        return None
    span_seconds = (rows[-1][0] - rows[0][0]).total_seconds()
    return {
        "input_tokens": round(median(row[1] or 0 for row in rows)) or 1,
        "output_tokens": round(median(row[2] or 0 for row in rows)) or 1,
        "arrival_seconds": round(max(span_seconds / (len(rows) - 1), 0.01), 2),
    }


def page(range_: Range) -> dict[str, Any]:
    """Charts, tables and tiles of the traffic page."""
    now = timezone.now()
    requests, samples = requests_of(range_, now), samples_of(range_, now)
    seen = points(samples, range_)
    steps, whole = requests.by_step(), total(requests.by_step().values())
    lines = traffic.with_gaps(seen, range_.step)
    by_replica, roles = replica_series(samples, range_)
    figures = {
        "queue": traffic.queue(lines, by_replica, roles, range_, now),
        "slots": traffic.slots(lines, range_, now),
        "tokens": traffic.tokens(lines, range_, now),
        "waits": traffic.waits(steps, range_, now),
        "phases": traffic.phases(steps, range_, now),
        "handovers": traffic.handovers(steps, range_, now),
    }
    return {
        "figures": figures,
        "tables": {name: traffic.table_of(figure) for name, figure in figures.items()},
        "tiles": traffic.tiles(seen, whole if requests.every == 1 else with_counts(whole, requests.counts)),
        "every": requests.every,
        "has_samples": bool(seen),
    }

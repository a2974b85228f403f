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
SINGLE_REPLICAS_UP_TO = timedelta(minutes=10)
SINGLE_REQUESTS_UP_TO = timedelta(hours=1)
COLUMNS = ("at", "waiting", "running", "slots", "output_tokens")


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


def points(range_: Range, now: datetime) -> list[Point]:
    """Samples of all gateways added up, then averaged over the steps of the range."""
    samples = thinned(TrafficSample.objects.filter(at__gt=now - range_.span), range_)
    groups: dict[datetime, list[tuple[Any, ...]]] = defaultdict(list)
    for row in samples.order_by("at").values_list("gateway", *COLUMNS):
        groups[bucket(row[1], range_.step)].append(row)
    return [point(at, rows) for at, rows in groups.items()]


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


def replica_series(range_: Range, now: datetime) -> tuple[dict[str, Series], dict[str, str]]:
    """Queue length per replica, for ranges short enough to read every sample; and the replicas' roles."""
    if range_.span > SINGLE_REPLICAS_UP_TO:
        return {}, {}
    series: dict[str, Series] = defaultdict(list)
    roles: dict[str, str] = {}
    samples = (
        TrafficSample.objects.filter(at__gt=now - range_.span).order_by("at").values_list("at", "replicas")
    )
    for at, loads in samples:
        for load in loads:
            label = load.get("label") or f"replica {load['replica']}"
            series[label].append((at, load["waiting"]))
            roles[label] = load.get("role", "")
    return dict(series), roles


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
    requests, seen = requests_of(range_, now), points(range_, now)
    steps, whole = requests.by_step(), total(requests.by_step().values())
    lines = traffic.with_gaps(seen, range_.step)
    by_replica, roles = replica_series(range_, now)
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
        "tiles": traffic.tiles(seen, replace(requests.counts, first_token=whole.first_token)),
        "every": requests.every,
        "has_samples": bool(seen),
    }

"""Two replicas beside each other: what each was planned to do, and what it did over a range."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.utils import timezone

from serving.charts import replica_pair
from serving.charts.replica_pair import Side
from serving.charts.traffic import Range
from serving.core.tally import Tally, total
from serving.models import Deployment, Replica
from serving.services import traffic
from serving.services.roll_ups import Groups, Way

OFFERED_DEPLOYMENTS = 20


@dataclass(frozen=True)
class Choice:
    """A deployment and its replicas, for the two lists of the form."""

    deployment: Deployment
    replicas: list[Replica]


def choices() -> list[Choice]:
    """The latest deployments, those that run first."""
    latest = list(Deployment.objects.prefetch_related("replicas").defer("cluster")[:OFFERED_DEPLOYMENTS])
    latest.sort(key=lambda one: one.wanted != Deployment.Wanted.RUNNING)
    return [Choice(one, list(one.replicas.all())) for one in latest]


def chosen(offered: list[Choice], left: int | None, right: int | None) -> tuple[Replica, Replica] | None:
    """The two that were asked for; what was not asked for is filled up with two that do the same."""
    known = {replica.pk: replica for choice in offered for replica in choice.replicas}
    first = known.get(left or 0) or next(
        (pair[0] for choice in offered if (pair := likely_pair(choice.replicas))), None
    )
    if first is None:
        return None
    second = known.get(right or 0) or partner(first, known)
    return None if second is None else (first, second)


def likely_pair(replicas: list[Replica]) -> tuple[Replica, Replica] | None:
    """Two of one role, else the first two."""
    answering = sorted(replicas, key=lambda replica: replica.role == Replica.Roles.PREFILL)
    for first, second in zip(answering, answering[1:], strict=False):
        if first.role == second.role:
            return first, second
    return (answering[0], answering[1]) if len(answering) > 1 else None


def partner(first: Replica, known: dict[int, Replica]) -> Replica | None:
    others = [
        one for one in known.values() if one.pk != first.pk and one.deployment_id == first.deployment_id
    ]
    return next((one for one in others if one.role == first.role), others[0] if others else None)


def compared(pair: tuple[Replica, Replica], range_: Range) -> dict[str, Any]:
    """Rows and figures of the page."""
    now = timezone.now()
    requests = traffic.requests_of(range_, now)
    sides = [
        side_of(replica, requests.groups, position, up_seconds(replica, range_, now))
        for position, replica in enumerate(pair)
    ]
    figures = replica_pair.figures(sides, range_, now)
    return {
        "sides": sides,
        "groups": replica_pair.groups(sides, requests.every),
        "figures": figures,
        "unlike": replica_pair.unlike_text(sides),
        "tables": replica_pair.tables(figures),
        "every": requests.every,
        "has_requests": any(side.all.requests for side in sides),
    }


def up_seconds(replica: Replica, range_: Range, now: datetime) -> float:
    """How much of the range lies between the replica's last start and the end of its deployment."""
    began = max(now - range_.span, replica.ready_at or now - range_.span)
    ended = min(now, replica.deployment.ended_at or now)
    return max(0.0, (ended - began).total_seconds())


def side_of(replica: Replica, groups: Groups, position: int, up_seconds: float) -> Side:
    def prompts(way: Way) -> bool:
        return (way[1] if way[0] is None else way[0]) == replica.pk

    def answers(way: Way) -> bool:
        return way[1] == replica.pk

    everything = steps(groups, lambda way: replica.pk in way)
    return Side(
        replica=replica,
        plan=replica.deployment.plan["replicas"][replica.index],
        position=position,
        steps=everything,
        all=total(everything.values()),
        prompts=total(steps(groups, prompts).values()),
        answers=total(steps(groups, answers).values()),
        up_seconds=up_seconds,
    )


def steps(groups: Groups, belongs: Callable[[Way], bool]) -> dict[datetime, Tally]:
    found = {at: total(tally for way, tally in groups[at].items() if belongs(way)) for at in sorted(groups)}
    return {at: tally for at, tally in found.items() if tally.requests}

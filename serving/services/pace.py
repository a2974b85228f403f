"""How fast a plan says an answer comes when as many slots are busy as were."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from planner.core.plan import Plan
from planner.core.problem import Problem
from planner.core.servers import servers
from serving.charts.deployment_rows import Pace
from serving.core.calibration import together
from serving.models import Deployment, RequestSample

LOOKED_AT = 100  # answers of each replica, the latest: each is held against every other


def paces(deployment: Deployment, requests: Sequence[RequestSample]) -> dict[int, Pace]:
    """Replica id -> pace of its latest answers; without those that made none, and without what nobody planned."""
    if "predicted" not in deployment.plan or not any(one.tokens_per_second() for one in requests):
        return {}
    found = servers(Problem.from_dict(deployment.cluster), Plan.from_dict(deployment.plan))
    made = {}
    for replica in deployment.replicas.all():
        own = [one for one in requests if one.decode_replica_id == replica.pk and one.tokens_per_second()]
        if own:
            made[replica.pk] = pace(own[:LOOKED_AT], found[replica.index].step_seconds)
    return made


def pace(answers: Sequence[RequestSample], step_seconds: Sequence[float]) -> Pace:
    """Medians over the answers; `step_seconds` of 0, 1, ... busy slots."""
    most = len(step_seconds) - 1
    busy = [min(max(round(count), 1), most) for count in together([span(one) for one in answers])]
    return Pace(
        busy=round(median(busy)),
        measured=median(one.tokens_per_second() or 0.0 for one in answers),
        planned=median(1 / step_seconds[count] for count in busy),
    )


def span(answer: RequestSample) -> tuple[float, float]:
    """When it was decoded, in seconds since the epoch."""
    received = answer.received_at.timestamp()
    return received + (answer.first_token_seconds or 0.0), received + answer.total_seconds

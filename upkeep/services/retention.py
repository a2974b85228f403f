"""What the site forgets, and when: counted for the page, deleted by the clock in small bites."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import models
from django.db.models import QuerySet
from django.utils import timezone

from accounts.models import User
from accounts.services import audit
from jobs.models import Job, JobLine
from serving.models import RequestRollUp, RequestSample, RequestText, Retention, TrafficSample
from upkeep.models import Alert

BITE = 2_000  # rows of one transaction: nobody waits for the database meanwhile
ALERT_LIFE = timedelta(days=90)

Rows = QuerySet[models.Model]


@dataclass(frozen=True)
class Portion:
    """One kind of thing that is forgotten: how long it stays, and what goes with the next round."""

    label: str
    kept: str
    rows: Callable[[Retention, datetime], Rows]


def portions(retention: Retention) -> list[Portion]:
    prompts = days(retention.prompt_days) if retention.keeps_prompts else "not kept"
    return [
        Portion("Timelines of requests", days(retention.request_days), old_requests),
        Portion("What was asked", prompts, old_texts),
        Portion("Figures behind the charts", days(retention.traffic_days), old_traffic),
        Portion("Requests added up for the charts", days(retention.traffic_days), old_roll_ups),
        Portion("Logs of jobs", days(retention.job_days), old_lines),
        Portion("Jobs that belong to no plan", days(retention.job_days), old_jobs),
        Portion("Alerts that are over", days(ALERT_LIFE.days), old_alerts),
    ]


def days(count: int) -> str:
    return f"{count} day{'' if count == 1 else 's'}"


def old_requests(retention: Retention, now: datetime) -> Rows:
    return RequestSample.objects.filter(received_at__lt=now - timedelta(days=retention.request_days))


def old_texts(retention: Retention, now: datetime) -> Rows:
    """All of them once nothing is to be kept any more."""
    if not retention.keeps_prompts:
        return RequestText.objects.all()
    return RequestText.objects.filter(kept_at__lt=now - timedelta(days=retention.prompt_days))


def old_traffic(retention: Retention, now: datetime) -> Rows:
    return TrafficSample.objects.filter(at__lt=now - timedelta(days=retention.traffic_days))


def old_roll_ups(retention: Retention, now: datetime) -> Rows:
    return RequestRollUp.objects.filter(at__lt=now - timedelta(days=retention.traffic_days))


def old_lines(retention: Retention, now: datetime) -> Rows:
    return JobLine.objects.filter(job__ended_at__lt=now - timedelta(days=retention.job_days))


def old_jobs(retention: Retention, now: datetime) -> Rows:
    """A plan goes with its job, so that jobs of plans stay."""
    ended = Job.objects.filter(ended_at__lt=now - timedelta(days=retention.job_days))
    return ended.filter(plan_run=None, launch=None)


def old_alerts(retention: Retention, now: datetime) -> Rows:
    return Alert.objects.filter(resolved_at__lt=now - ALERT_LIFE)


def preview(retention: Retention) -> list[tuple[Portion, int]]:
    """What the next round would delete if it were now."""
    now = timezone.now()
    return [(portion, portion.rows(retention, now).count()) for portion in portions(retention)]


def forget(now: datetime | None = None) -> int:
    """Delete what is older than it may be; how many rows that were."""
    at, retention = now or timezone.now(), Retention.current()
    return sum(delete(portion.rows(retention, at)) for portion in portions(retention))


def delete(rows: Rows) -> int:
    count = 0
    while bite := list(rows.order_by("pk").values_list("pk", flat=True)[:BITE]):
        rows.model._base_manager.filter(pk__in=bite).delete()
        count += len(bite)
    return count


def change(retention: Retention, user: User, before: dict[str, int | bool], address: str) -> None:
    """Save new times, with what they were in the audit log; texts that may not be kept go at once."""
    retention.pk = retention.pk or 1
    retention.save()
    audit(user, "retention.changed", "retention", {"before": before, "after": values(retention)}, address)
    if not retention.keeps_prompts:
        delete(RequestText.objects.all())


def values(retention: Retention) -> dict[str, int | bool]:
    names = ("request_days", "traffic_days", "job_days", "keeps_prompts", "prompt_days")
    return {name: getattr(retention, name) for name in names}

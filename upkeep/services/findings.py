"""What is wrong now, by the rules that an admin has set."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.urls import reverse

from inventory.core.quantities import bytes_text, seconds_text
from inventory.models import Device
from serving.charts.traffic import LONGEST_SILENCE
from serving.core.tally import Spread
from serving.models import Deployment, Replica, RequestSample, TrafficSample
from serving.runner.reconcile import STEADY_AFTER
from upkeep.core.queue import Look, long_for_seconds
from upkeep.models import Alert, AlertRules, BackupSchedule

WAIT_WINDOW = timedelta(minutes=5)
FEWEST_REQUESTS = 20  # a percentile of fewer is one unlucky request

Kinds = Alert.Kinds
RESTARTED = (
    "It answers again; its page says what had failed. The alert is over once it has run for "
    f"{seconds_text(STEADY_AFTER.total_seconds())} without another end."
)


@dataclass(frozen=True)
class Finding:
    """Something that is wrong."""

    kind: Alert.Kinds
    subject: str
    title: str
    text: str
    path: str


def findings(rules: AlertRules, now: datetime) -> list[Finding]:
    found = [*backups()]
    if rules.watches_replicas:
        found += [*replicas(), *nothing_serves()]
    if rules.watches_devices:
        found += devices()
    if rules.queue_longer_than is not None:
        found += queues(rules.queue_longer_than, rules.queue_seconds, now)
    if rules.wait_p95_seconds is not None:
        found += waits(rules.wait_p95_seconds, now)
    if rules.disk_free_bytes is not None:
        found += disk(rules.disk_free_bytes)
    return found


def replicas() -> Iterator[Finding]:
    """Failed, or started again by itself and not steady since; how fast it came back makes no difference."""
    wanted = Replica.objects.filter(deployment__wanted=Deployment.Wanted.RUNNING).select_related("deployment")
    for replica in wanted:
        path = reverse("serving:detail", args=[replica.deployment_id])
        subject, name = f"replica:{replica.pk}", f"{replica.label} of {replica.deployment}"
        if replica.state not in (Replica.States.READY, Replica.States.DRAINING):
            if replica.state == Replica.States.FAILED or replica.restarts:
                text = replica.state_reason or f"It is {replica.get_state_display().lower()}."
                yield Finding(Kinds.REPLICA_DOWN, subject, f"{name} is down", text, path)
        elif replica.restarts:
            yield Finding(
                Kinds.REPLICA_DOWN, subject, f"{name} went down and was started again", RESTARTED, path
            )


def nothing_serves() -> Iterator[Finding]:
    """The last change was a roll-out that failed, and nothing is left that runs or is to run."""
    if Deployment.objects.filter(wanted=Deployment.Wanted.RUNNING).exists():
        return
    last = Deployment.objects.exclude(ended_at=None).order_by("-ended_at").first()
    if last is not None and last.state == Deployment.States.FAILED:
        text = f"{last} failed: {last.state_reason} Deploy it or another plan again."
        path = reverse("serving:detail", args=[last.pk])
        yield Finding(Kinds.REPLICA_DOWN, "serving", "Nothing serves although it was wanted", text, path)


def devices() -> Iterator[Finding]:
    gone = Device.objects.filter(
        state__in=[Device.States.LOST, Device.States.KEY_CHANGED], in_maintenance=False
    )
    for device in gone:
        if device.closed_reason:
            continue
        title = f"{device.name} does not answer"
        if device.state == Device.States.KEY_CHANGED:
            title = f"The host key of {device.name} has changed"
        text = device.state_reason or "Check its power, its network and its SSH server."
        path = reverse("inventory:device", args=[device.pk])
        yield Finding(Kinds.DEVICE_LOST, f"device:{device.pk}", title, text, path)


def queues(longest: int, seconds: int, now: datetime) -> Iterator[Finding]:
    """Each gateway's queue by itself, as long as the gateway reports it."""
    since = now - timedelta(seconds=seconds) - LONGEST_SILENCE
    rows = TrafficSample.objects.filter(at__gt=since, at__lte=now).order_by("at")
    looks: dict[str, list[Look]] = defaultdict(list)
    for gateway, at, waiting in rows.values_list("gateway", "at", "waiting"):
        looks[gateway].append((at.timestamp(), waiting))
    for gateway, own in looks.items():
        is_silent = own[-1][0] < now.timestamp() - LONGEST_SILENCE.total_seconds()
        if is_silent or long_for_seconds(own, longest, now.timestamp()) < seconds:
            continue
        title = f"More than {longest} requests have waited for {seconds_text(seconds)}"
        text = f"{own[-1][1]} wait now. More slots, a faster plan or fewer clients would help."
        yield Finding(Kinds.QUEUE_LONG, f"gateway:{gateway}", title, text, reverse("serving:traffic"))


def waits(longest_seconds: float, now: datetime) -> Iterator[Finding]:
    window = RequestSample.objects.filter(received_at__gt=now - WAIT_WINDOW, received_at__lte=now).order_by()
    spread = Spread()
    for seconds in window.values_list("queued_seconds", flat=True):
        spread.add(seconds)
    p95 = spread.percentile(0.95)
    if p95 is None or spread.count < FEWEST_REQUESTS or p95 <= longest_seconds:
        return
    title = f"One request in twenty waits longer than {seconds_text(longest_seconds)}"
    text = f"The time in the queue of the last 5 min: p95 {seconds_text(p95)}, of {spread.count} requests."
    yield Finding(Kinds.WAIT_LONG, "traffic", title, text, reverse("serving:traffic"))


def disk(least_bytes: int) -> Iterator[Finding]:
    free = shutil.disk_usage(settings.DATA_DIR).free
    if free < least_bytes:
        title = f"The disk of the data folder has {bytes_text(free)} left"
        text = f"{settings.DATA_DIR} lies on it. Free some space, keep less, or move the folder."
        yield Finding(Kinds.DISK_LOW, "disk", title, text, reverse("upkeep:retention"))


def backups() -> Iterator[Finding]:
    error = BackupSchedule.current().error
    if error:
        title = "The last scheduled backup failed"
        yield Finding(Kinds.BACKUP_FAILED, "schedule", title, error, reverse("upkeep:backups"))

"""Start, watch and cancel long work."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from celery import current_app
from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import F, Q
from django.db.models.functions import Now
from django.utils import timezone
from kombu.connection import Connection
from kombu.exceptions import OperationalError

from accounts.models import User
from jobs import events
from jobs.models import ACTIVE_STATES, SILENT_SECONDS, Job, JobStep, State

LEASE_SECONDS = 15.0
FRESH_SECONDS = 5.0
RESEND_SECONDS = 30.0
MAX_ATTEMPTS = 3
# A person waits for the answer to a form meanwhile. Celery's own pool tries again for 6 s, retry=False or not.
ONE_QUICK_TRY = {"max_retries": 0, "socket_connect_timeout": 1.0, "socket_timeout": 1.0}


class AlreadyRunning(Exception):
    """The same work on the same thing is under way; `job` is it."""

    def __init__(self, job: Job) -> None:
        who = job.started_by.username if job.started_by else "the system"
        age = (timezone.now() - job.created_at).total_seconds()
        super().__init__(f"“{job.label}” is already running, started by {who} {age:.0f} s ago.")
        self.job = job


def start(
    kind: str,
    params: dict[str, Any],
    user: User | None,
    *,
    label: str,
    subject: str = "",
) -> Job:
    """Record the job and hand it to a worker once the transaction is committed.

    Raises AlreadyRunning when an active job of this kind has the same non-empty subject.
    """
    try:
        with transaction.atomic():
            job = Job.objects.create(kind=kind, params=params, started_by=user, label=label, subject=subject)
    except IntegrityError:
        running = Job.objects.active().filter(kind=kind, subject=subject).first()
        if running is None:
            return start(kind, params, user, label=label, subject=subject)
        raise AlreadyRunning(running) from None
    transaction.on_commit(lambda: send(job))
    return job


def send(job: Job) -> None:
    """Hand a pending job to the queue; when the queue is down the reaper sends it later."""
    try:
        with Connection(settings.CELERY_BROKER_URL, transport_options=ONE_QUICK_TRY) as queue:
            current_app.send_task(job.kind, [job.pk], ignore_result=True, retry=False, connection=queue)
    except OperationalError:
        return
    Job.objects.filter(pk=job.pk).update(sent_at=Now())


def cancel(job: Job) -> None:
    """Ask a running job to stop (it does within two seconds).

    One that waits, or whose worker gives no sign of life, ends at once: a worker that comes back has lost its lease.
    """
    silent = Q(state=State.RUNNING) & ~within("heartbeat_at", SILENT_SECONDS)
    unattended = Job.objects.filter(Q(state=State.PENDING) | silent, pk=job.pk)
    change = {"state": State.CANCELLED, "cancel_requested": True, "lease": "", "ended_at": timezone.now()}
    if unattended.update(**change, seq=F("seq") + 1):
        _announce_end(job)
    else:
        Job.objects.active().filter(pk=job.pk).update(cancel_requested=True)


def reap() -> None:
    """Give jobs whose worker went silent to another one, end those to be cancelled, resend those the queue lost."""
    lost = ~within("heartbeat_at", LEASE_SECONDS)
    unheard = Q(cancel_requested=True) & ~within("heartbeat_at", SILENT_SECONDS)
    for job in Job.objects.filter(lost | unheard, state=State.RUNNING):
        _take_back(job)
    waiting = Job.objects.filter(state=State.PENDING).filter(~within("created_at", FRESH_SECONDS))
    for job in waiting.filter(Q(sent_at=None) | ~within("sent_at", RESEND_SECONDS)):
        send(job)


def within(field: str, seconds: float) -> Q:
    """The moment lies less than `seconds` ago. One in the future does not: the clock was set back since.

    By the database's clock: a machine whose own is wrong must not take the work of the others away.
    """
    now, span = Now(), timedelta(seconds=seconds)
    return Q(**{f"{field}__gte": now - span, f"{field}__lte": now + span})


def _take_back(job: Job) -> None:
    now = timezone.now()
    change: dict[str, Any] = {"lease": "", "seq": job.seq + 1}
    if job.cancel_requested:
        change |= {"state": State.CANCELLED, "ended_at": now}
    elif job.attempts >= MAX_ATTEMPTS:
        error = (
            f"Its worker was lost {job.attempts} times, so it was not started again. See the worker's log."
        )
        change |= {"state": State.INTERRUPTED, "ended_at": now, "error": error}
    else:
        change |= {
            "state": State.PENDING,
            "message": "The worker was lost; starting again",
        }
    if Job.objects.filter(pk=job.pk, state=State.RUNNING, lease=job.lease).update(**change):
        if change["state"] == State.PENDING:
            _announce(job)
            send(job)
        else:
            _announce_end(job)


def _announce_end(job: Job) -> None:
    """The end of a job that nobody worked on any more: no line of its checklist may still say that it runs."""
    job.refresh_from_db(fields=["state"])
    steps = list(job.steps.filter(state=JobStep.States.RUNNING))
    for step in steps:
        step.end_with(job.state)
        step.save(update_fields=["state", "detail", "ended_at"])
    Job.objects.filter(pk=job.pk).update(seq=F("seq") + len(steps))
    _announce(job, steps)


def _announce(job: Job, steps: Sequence[JobStep] = ()) -> None:
    job.refresh_from_db()
    first = job.seq - len(steps)
    items = [
        {"type": "step", "seq": first + place, "step": step.to_dict()} for place, step in enumerate(steps)
    ]
    events.publish(job.pk, [*items, {"type": "job", "seq": job.seq, "job": job.to_dict()}])


def existing_job_id(job_id: int) -> int | None:
    return Job.objects.filter(pk=job_id).values_list("pk", flat=True).first()


def snapshot(job_id: int) -> dict[str, Any]:
    """Everything a page needs to show the job as it stands, with the sequence number it is true at."""
    job = Job.objects.get(pk=job_id)
    return {
        "type": "snapshot",
        "seq": job.seq,
        "job": job.to_dict(),
        "silent_seconds": job.silent_seconds,
        "steps": [step.to_dict() for step in job.steps.all()],
        "lines": [line.to_dict() for line in job.recent_lines()],
    }


def active_for(subject: str) -> Job | None:
    return Job.objects.filter(subject=subject, state__in=ACTIVE_STATES).first()

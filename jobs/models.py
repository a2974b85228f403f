"""Long work as rows: state, sequence number, heartbeat, checklist and log."""

from typing import Any, Self

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone


class State(models.TextChoices):
    PENDING = "pending", "Waiting to start"
    RUNNING = "running", "Running"
    SUCCEEDED = "succeeded", "Done"
    FAILED = "failed", "Failed"
    CANCELLED = "cancelled", "Cancelled"
    INTERRUPTED = "interrupted", "Interrupted"


SHOWN_LINES = 500
SILENT_SECONDS = 5.0  # a worker that lives beats every second
ACTIVE_STATES = [State.PENDING, State.RUNNING]
UNDONE_STATES = [State.FAILED, State.CANCELLED, State.INTERRUPTED]


class JobQuerySet(models.QuerySet["Job"]):
    def active(self) -> Self:
        return self.filter(state__in=ACTIVE_STATES)

    def about(self, subject: str) -> Self:
        return self.filter(subject=subject)


class Job(models.Model):
    kind = models.CharField(max_length=80, help_text="name of the Celery task that does it")
    label = models.CharField(max_length=200, help_text="what a person calls this work")
    subject = models.CharField(max_length=80, blank=True, db_index=True, help_text='such as "device:3"')
    params = models.JSONField(default=dict, help_text="ids and options, never a secret")
    state = models.CharField(max_length=16, choices=State, default=State.PENDING, db_index=True)
    seq = models.PositiveBigIntegerField(default=0, help_text="grows with every change that a page can see")
    fraction = models.FloatField(null=True, help_text="0 to 1; empty while unknown")
    message = models.CharField(max_length=500, blank=True)
    remaining_seconds = models.FloatField(null=True)
    error = models.TextField(blank=True)
    attempts = models.PositiveSmallIntegerField(default=0)
    cancel_requested = models.BooleanField(default=False)
    lease = models.CharField(max_length=32, blank=True, help_text="token of the worker that runs it")
    heartbeat_at = models.DateTimeField(null=True)
    sent_at = models.DateTimeField(null=True, help_text="last handed to the queue")
    started_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL)
    created_at = models.DateTimeField(auto_now_add=True, db_index=True)
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    objects = JobQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["kind", "subject"],
                condition=Q(state__in=["pending", "running"]) & ~Q(subject=""),
                name="one_active_job_per_subject",
            )
        ]

    def __str__(self) -> str:
        return f"{self.label} ({self.get_state_display()})"

    @property
    def is_active(self) -> bool:
        return self.state in ACTIVE_STATES

    @property
    def is_undone(self) -> bool:
        """Over, and its work was not done: how much of it was is a number about nothing."""
        return self.state in UNDONE_STATES

    @property
    def is_cancelling(self) -> bool:
        """A person has cancelled it, and it is at ending what it had begun: it foretells nothing any more."""
        return self.is_active and self.cancel_requested

    @property
    def shown_state(self) -> str:
        return "cancelling" if self.is_cancelling else self.state

    @property
    def shown_fraction(self) -> float | None:
        return None if self.is_undone or self.is_cancelling else self.fraction

    @property
    def percent(self) -> int | None:
        return None if self.shown_fraction is None else round(100 * self.shown_fraction)

    @property
    def shown_message(self) -> str:
        """What it is at, or was at when it ended before its work was done."""
        return f"Ended at: {self.message}" if self.is_undone and self.message else self.message

    @property
    def silent_seconds(self) -> float | None:
        """How long its worker has given no sign of life; None while it does, or need not."""
        if self.state != State.RUNNING or self.heartbeat_at is None:
            return None
        silent = (timezone.now() - self.heartbeat_at).total_seconds()
        return silent if silent >= SILENT_SECONDS else None

    def recent_lines(self) -> list["JobLine"]:
        """The last lines of the log, oldest first."""
        return list(self.lines.order_by("-seq")[:SHOWN_LINES])[::-1]

    def shows_remaining(self) -> bool:
        """Less than a second is over before one has read it."""
        return self.is_active and not self.is_cancelling and (self.remaining_seconds or 0.0) >= 1.0

    def seconds(self) -> float | None:
        """How long it has run, or ran."""
        if self.started_at is None:
            return None
        return max(0.0, ((self.ended_at or timezone.now()) - self.started_at).total_seconds())

    def to_dict(self) -> dict[str, Any]:
        return {
            "id": self.pk,
            "label": self.label,
            "state": self.state,
            "state_label": self.get_state_display(),
            "shown_state": self.shown_state,
            "fraction": self.shown_fraction,
            "message": self.shown_message,
            "remaining_seconds": None if self.is_cancelling else self.remaining_seconds,
            "error": self.error,
            "attempts": self.attempts,
            "cancel_requested": self.cancel_requested,
            "is_active": self.is_active,
            "started_at": self.started_at.isoformat() if self.started_at else None,
            "ended_at": self.ended_at.isoformat() if self.ended_at else None,
        }


class JobStep(models.Model):
    """One line of a job's checklist."""

    class States(models.TextChoices):
        PENDING = "pending", "To do"
        RUNNING = "running", "Running"
        DONE = "done", "Done"
        FAILED = "failed", "Failed"
        SKIPPED = "skipped", "Not needed"

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="steps")
    position = models.PositiveSmallIntegerField()
    key = models.CharField(max_length=120)
    label = models.CharField(max_length=300)
    state = models.CharField(max_length=16, choices=States, default=States.PENDING)
    detail = models.TextField(blank=True)
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["position"]
        constraints = [models.UniqueConstraint(fields=["job", "key"], name="one_step_per_key")]

    def end_with(self, state: str) -> None:
        """It ran when its job ended like this before the step was done; a cancel is no failure of the step."""
        is_cancel = state == State.CANCELLED
        self.state = self.States.SKIPPED if is_cancel else self.States.FAILED
        self.detail = "cancelled" if is_cancel else self.detail
        self.ended_at = timezone.now()

    def to_dict(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "label": self.label,
            "position": self.position,
            "state": self.state,
            "state_label": self.get_state_display(),
            "detail": self.detail,
            "started_at": self.started_at.isoformat() if self.started_at else None,
            "ended_at": self.ended_at.isoformat() if self.ended_at else None,
        }


class JobLine(models.Model):
    """One line of a job's log."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="lines")
    seq = models.PositiveBigIntegerField()
    at = models.DateTimeField()
    text = models.TextField()

    class Meta:
        ordering = ["seq"]
        constraints = [models.UniqueConstraint(fields=["job", "seq"], name="one_line_per_seq")]

    def to_dict(self) -> dict[str, Any]:
        return {"seq": self.seq, "at": self.at.isoformat(), "text": self.text}

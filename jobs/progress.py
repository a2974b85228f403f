"""How running work reports itself, from plain and from async code alike."""

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from django.db import DatabaseError, InterfaceError, connection, transaction
from django.db.models.functions import Now
from django.utils import timezone

from jobs import events
from jobs.core.errors import Cancelled, LeaseLost
from jobs.models import Job, JobLine, JobStep, State

FLUSH_SECONDS = 0.25
HEARTBEAT_SECONDS = 1.0
NEARLY_ALL = 1 - 1e-9
LEAST_LEFT_SECONDS = 1.0  # less is over before one has read it
LAST_TRIES, LAST_TRY_SECONDS = 30, 1.0

log = logging.getLogger(__name__)


class Progress:
    """Collects what the work reports; its own thread writes and publishes it at most four times a second.

    The work never waits for the database or the socket, and may report from inside an event loop.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self._lock = threading.Lock()
        self._items: list[dict[str, Any]] = []
        self._lines: list[JobLine] = []
        self._steps = {step.key: step for step in job.steps.all()}
        self._dirty_steps: set[str] = set()
        self._span = (0.0, 1.0)
        self._furthest = 0.0
        self._due: float | None = None  # by the monotonic clock
        self._cancelled = threading.Event()
        self._lost = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._loop, name=f"job-{job.pk}", daemon=True)

    def open(self) -> None:
        with self._lock:
            self._announce()
        self._thread.start()

    def close(self, state: State | None, error: str = "") -> None:
        """Write what is left and the final state; None leaves the row to its new owner."""
        if state is None:
            self._lost.set()
        else:
            with self._lock:
                self._end_steps(state)
                self.job.state, self.job.error, self.job.ended_at = (
                    state,
                    error,
                    timezone.now(),
                )
                self.job.remaining_seconds = None
                self.job.fraction = 1.0 if state == State.SUCCEEDED else self.job.fraction
                self._announce()
        self._closing.set()
        self._thread.join()

    def check(self) -> None:
        """Raise Cancelled or LeaseLost when the work has to stop; call it several times a second."""
        if self._lost.is_set():
            raise LeaseLost
        if self._cancelled.is_set():
            raise Cancelled

    def report(
        self,
        message: str,
        fraction: float | None = None,
        remaining_seconds: float | None = None,
    ) -> None:
        with self._lock:
            before = self.job.fraction
            self.job.message = message[:500]
            self.job.fraction, remaining_seconds = self._of_the_whole(fraction, remaining_seconds)
            self._expect(remaining_seconds, has_moved=self.job.fraction != before)
            self._announce()

    @contextmanager
    def span(self, begin: float, end: float) -> Iterator[None]:
        """What is reported inside counts for this share of what is around it, and the fraction never falls.

        The time left is shown in the last share alone: before it, nobody knows that of the whole.
        """
        with self._lock:
            outer = self._span
            low, width = outer[0], outer[1] - outer[0]
            self._span = (low + width * begin, low + width * end)
        try:
            yield
        finally:
            with self._lock:
                self._span = outer

    def _of_the_whole(
        self, fraction: float | None, remaining_seconds: float | None
    ) -> tuple[float | None, float | None]:
        low, high = self._span
        if (low, high) == (0.0, 1.0):
            return fraction, remaining_seconds
        self._furthest = max(self._furthest, low + (high - low) * (fraction or 0.0))
        return self._furthest, remaining_seconds if high > NEARLY_ALL else None

    def _expect(self, remaining_seconds: float | None, *, has_moved: bool) -> None:
        """The end may move away while the work moves; while it stands still the time left only runs down."""
        if remaining_seconds is None:
            self._due = None
        else:
            due = time.monotonic() + remaining_seconds
            self._due = due if has_moved or self._due is None else min(due, self._due)
        self._run_down()

    def _run_down(self) -> None:
        left = None if self._due is None else self._due - time.monotonic()
        self.job.remaining_seconds = left if left is not None and left >= LEAST_LEFT_SECONDS else None

    def log(self, text: str) -> None:
        with self._lock:
            line = JobLine(job=self.job, seq=self._next_seq(), at=timezone.now(), text=text)
            self._lines.append(line)
            self._items.append({"type": "line", **line.to_dict()})

    def publish(self, event: Mapping[str, Any]) -> None:
        """Pass an app's own event, which carries its `type`, to the pages that watch the job."""
        with self._lock:
            self._items.append({**event, "seq": self._next_seq()})

    def step(self, key: str, label: str) -> None:
        """Add a line to the checklist; one that is already there starts over."""
        with self._lock:
            step = self._steps.get(key)
            if step is None:
                step = JobStep(job=self.job, key=key, position=len(self._steps))
                self._steps[key] = step
            step.label, step.state, step.detail = (
                label[:300],
                JobStep.States.PENDING,
                "",
            )
            step.started_at = step.ended_at = None
            self._mark(step)

    def start_step(self, key: str, detail: str = "") -> None:
        self._move(key, JobStep.States.RUNNING, detail)

    def end_step(self, key: str, detail: str = "") -> None:
        self._move(key, JobStep.States.DONE, detail)

    def skip_step(self, key: str, detail: str = "") -> None:
        self._move(key, JobStep.States.SKIPPED, detail)

    def fail_step(self, key: str, detail: str) -> None:
        self._move(key, JobStep.States.FAILED, detail)

    def failed_steps(self) -> set[str]:
        """Keys of the checklist's lines that failed."""
        with self._lock:
            return {key for key, step in self._steps.items() if step.state == JobStep.States.FAILED}

    def call_off(self, reason: str) -> None:
        """Nothing of the checklist goes on: what runs is left out for this reason, the rest was never begun."""
        with self._lock:
            for step in self._steps.values():
                if step.state in (JobStep.States.RUNNING, JobStep.States.PENDING):
                    step.detail = reason if step.state == JobStep.States.RUNNING else "not started"
                    step.state, step.ended_at = JobStep.States.SKIPPED, timezone.now()
                    self._mark(step)

    def _move(self, key: str, state: JobStep.States, detail: str) -> None:
        with self._lock:
            step = self._steps[key]
            now = timezone.now()
            step.state, step.detail = state, detail
            step.started_at = step.started_at or now
            step.ended_at = None if state == JobStep.States.RUNNING else now
            self._mark(step)

    def _end_steps(self, state: State) -> None:
        """No line of a finished checklist may still say that it runs."""
        for step in self._steps.values():
            if step.state == JobStep.States.RUNNING and state != State.SUCCEEDED:
                step.end_with(state)
                self._mark(step)

    def _next_seq(self) -> int:
        self.job.seq += 1
        return self.job.seq

    def _announce(self) -> None:
        self._items = [item for item in self._items if item["type"] != "job"]
        self._items.append({"type": "job", "seq": self._next_seq(), "job": self.job.to_dict()})

    def _beat(self) -> None:
        """A sign of life; with it the time left runs down on the pages."""
        if self._due is None:
            self._items.append({"type": "beat", "seq": self._next_seq()})
        else:
            self._run_down()
            self._announce()

    def _mark(self, step: JobStep) -> None:
        self._dirty_steps.add(step.key)
        self._items.append({"type": "step", "seq": self._next_seq(), "step": step.to_dict()})

    def _loop(self) -> None:
        waited = HEARTBEAT_SECONDS
        while not self._closing.wait(FLUSH_SECONDS):
            waited += FLUSH_SECONDS
            if self._items or waited >= HEARTBEAT_SECONDS:
                waited = 0.0
                self._flush()
        self._flush_the_end()
        connection.close()

    def _flush_the_end(self) -> None:
        """How long work ended outlasts a restart of the database."""
        for _ in range(LAST_TRIES):
            if self._flush():
                return
            time.sleep(LAST_TRY_SECONDS)

    def _flush(self) -> bool:
        """Write and publish what is new; False when the database did not take it, and all is kept for later."""
        with self._lock:
            if not self._items:
                self._beat()
            items, self._items = self._items, []
            lines, self._lines = self._lines, []
            steps = [self._steps[key] for key in self._dirty_steps]
            self._dirty_steps.clear()
            row = self._row()
        try:
            kept = self._write(row, steps, lines)
        except (DatabaseError, InterfaceError) as error:
            log.warning("progress of job %s was not saved: %s", self.job.pk, error)
            connection.close_if_unusable_or_obsolete()
            self._put_back(items, lines, steps)
            return False
        if kept:
            events.publish(self.job.pk, items)
        return True

    def _row(self) -> dict[str, Any]:
        names = [
            "state",
            "seq",
            "fraction",
            "message",
            "remaining_seconds",
            "error",
            "ended_at",
        ]
        return {name: getattr(self.job, name) for name in names} | {"heartbeat_at": Now()}

    @transaction.atomic
    def _write(self, row: dict[str, Any], steps: list[JobStep], lines: list[JobLine]) -> bool:
        """Save under our lease; False when the lease is gone and nothing was written."""
        if self._lost.is_set():
            return False
        mine = Job.objects.filter(pk=self.job.pk, lease=self.job.lease, state=State.RUNNING)
        cancel_requested = mine.values_list("cancel_requested", flat=True).first()
        if not mine.update(**row):
            self._lost.set()
            return False
        if cancel_requested and not self._cancelled.is_set():
            self._cancelled.set()
            with self._lock:
                self.job.cancel_requested = True
                self._announce()
        for step in steps:
            step.save()
        JobLine.objects.bulk_create(lines)
        return True

    def _put_back(self, items: list[dict[str, Any]], lines: list[JobLine], steps: list[JobStep]) -> None:
        with self._lock:
            self._items = items + self._items
            self._lines = lines + self._lines
            self._dirty_steps.update(step.key for step in steps)

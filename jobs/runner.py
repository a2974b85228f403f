"""Runs one job under a lease: heartbeat, progress, cancel, and the record of how it ended."""

import logging
import secrets
from collections.abc import Callable

from django.db.models import F
from django.db.models.functions import Now
from django.utils import timezone

from jobs.core.errors import Cancelled, LeaseLost
from jobs.models import Job, State
from jobs.progress import Progress

log = logging.getLogger(__name__)

INTERNAL_ERRORS = (LookupError, TypeError, AttributeError, AssertionError, NameError)


def execute(job_id: int, work: Callable[[Progress], None]) -> None:
    """Do `work` if the job is still pending, and record its end; a second call does nothing.

    Whatever `work` raises, other than a cancel, is recorded as the job's error and raised again.
    """
    lease = secrets.token_hex(16)
    if not _claim(job_id, lease):
        return
    progress = Progress(Job.objects.get(pk=job_id))
    progress.open()
    try:
        work(progress)
        progress.check()
    except Cancelled:
        progress.close(State.CANCELLED)
    except LeaseLost:
        log.warning("job %s was taken over by another worker", job_id)
        progress.close(None)
    except Exception as error:
        words = _words(error)
        progress.close(State.FAILED, words)
        log.warning("job %s “%s” failed: %s", job_id, progress.job.label, " ".join(words.split()))
        raise
    else:
        progress.close(State.SUCCEEDED)


def _claim(job_id: int, lease: str) -> bool:
    now = timezone.now()
    pending = Job.objects.filter(pk=job_id, state=State.PENDING)
    claimed = pending.update(
        state=State.RUNNING,
        lease=lease,
        heartbeat_at=Now(),
        started_at=now,
        attempts=F("attempts") + 1,
        seq=F("seq") + 1,
    )
    return bool(claimed)


def _words(error: Exception) -> str:
    if isinstance(error, INTERNAL_ERRORS) or not str(error):
        return f"Internal error ({type(error).__name__}: {error}). The worker's log has the details."
    return str(error)

"""What people ask for about backups."""

from __future__ import annotations

import tempfile
from typing import IO

from accounts.models import User
from accounts.services import audit
from jobs import services as jobs
from jobs.models import Job
from upkeep.models import BackupSchedule
from upkeep.runner import archive, copies

SUBJECT = "backup"


def start(user: User, *, with_history: bool, address: str) -> Job:
    """Copy the site now, as a job; AlreadyRunning while one is."""
    params = {"with_history": with_history}
    job = jobs.start(copies.TASK, params, user, label="Back up the site", subject=SUBJECT)
    audit(user, "backup.started", job.label, params, address)
    return job


def sealed(name: str, passphrase: str) -> IO[bytes] | None:
    """A copy with the key files, sealed, as a file that is gone once it is closed; None when there is none."""
    path = copies.path_of(name)
    if path is None:
        return None
    target = tempfile.TemporaryFile(dir=copies.folder())  # noqa: SIM115  whoever sends it closes it
    archive.sealed(path, passphrase, target)
    target.seek(0)
    return target


def delete(name: str, user: User, address: str) -> bool:
    path = copies.path_of(name)
    if path is None:
        return False
    path.unlink()
    audit(user, "backup.deleted", name, address=address)
    return True


def change(schedule: BackupSchedule, user: User, address: str) -> None:
    schedule.pk = schedule.pk or 1
    schedule.save()
    detail = {
        "every_hours": schedule.every_hours,
        "kept": schedule.kept,
        "with_history": schedule.with_history,
    }
    audit(user, "backup.schedule_changed", SUBJECT, detail, address)

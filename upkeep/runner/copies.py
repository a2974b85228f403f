"""Copies of the site in its data folder: one made as a job or by the clock, the oldest scheduled ones deleted."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from django.conf import settings
from django.db import connection

from inventory.core.quantities import bytes_text
from jobs import runner as jobs
from jobs.core.errors import JobFailed
from jobs.progress import Progress
from upkeep.models import BackupSchedule
from upkeep.runner import archive
from upkeep.runner.archive import Report

TASK = "upkeep.back_up"
NAME = re.compile(r"(scheduled|by-hand)-(\d{8}T\d{6})Z\.tar\.gz")
SPARE_BYTES = 200 * 10**6
TRY_AGAIN = timedelta(hours=1)


@dataclass(frozen=True)
class Copy:
    """One backup in the folder."""

    name: str
    made_at: datetime
    size_bytes: int
    is_scheduled: bool


def folder() -> Path:
    return Path(settings.DATA_DIR) / "backups"


def copies() -> list[Copy]:
    """All backups, the newest first."""
    found = [copy_of(path) for path in folder().glob("*.tar.gz")]
    return sorted((copy for copy in found if copy), key=lambda copy: copy.made_at, reverse=True)


def copy_of(path: Path) -> Copy | None:
    match = NAME.fullmatch(path.name)
    if match is None or not path.is_file():
        return None
    made_at = datetime.strptime(match[2], "%Y%m%dT%H%M%S").replace(tzinfo=UTC)
    return Copy(path.name, made_at, path.stat().st_size, match[1] == "scheduled")


def path_of(name: str) -> Path | None:
    """The file of a backup; None of a name that is none."""
    path = folder() / name
    return path if NAME.fullmatch(name) and path.is_file() else None


def back_up(job_id: int) -> None:
    jobs.execute(job_id, by_hand)


def by_hand(progress: Progress) -> None:
    def report(fraction: float, text: str) -> None:
        progress.check()
        progress.report(text, fraction)

    try:
        write("by-hand", datetime.now(UTC), progress.job.params["with_history"], report)
    except OSError as error:
        raise JobFailed(f"The backup was not written: {error}") from None


def by_the_clock(now: datetime) -> None:
    """Make the scheduled copy when it is due; what went wrong stays on the schedule, where an alert finds it."""
    schedule = BackupSchedule.current()
    if not is_due(schedule, now):
        return
    schedule.tried_at, schedule.error = now, ""
    try:
        write("scheduled", now, schedule.with_history, lambda fraction, text: None)
    except Exception as error:
        schedule.error = (str(error) or type(error).__name__)[:500]
        raise
    finally:
        schedule.save(update_fields=["tried_at", "error"] if schedule.pk else None)
    for old in [copy for copy in copies() if copy.is_scheduled][schedule.kept :]:
        (folder() / old.name).unlink(missing_ok=True)


def is_due(schedule: BackupSchedule, now: datetime) -> bool:
    if not schedule.every_hours:
        return False
    if schedule.error and schedule.tried_at and now - schedule.tried_at < TRY_AGAIN:
        return False
    newest = next((copy.made_at for copy in copies() if copy.is_scheduled), None)
    return newest is None or now - newest >= timedelta(hours=schedule.every_hours)


def write(kind: str, now: datetime, with_history: bool, report: Report) -> None:
    check_room()
    target = folder() / f"{kind}-{now.astimezone(UTC):%Y%m%dT%H%M%S}Z.tar.gz"
    archive.make(target, with_history=with_history, report=report)


def check_room() -> None:
    """A copy needs less than the database; one that fills its disk would stop the site."""
    folder().mkdir(parents=True, exist_ok=True, mode=0o700)
    database = Path(str(connection.settings_dict["NAME"]))
    size = database.stat().st_size if connection.vendor == "sqlite" and database.exists() else 0
    free, needed = shutil.disk_usage(folder()).free, 2 * size + SPARE_BYTES
    if free < needed:
        raise JobFailed(
            f"The disk of {folder()} has {bytes_text(free)} left, and a backup needs {bytes_text(needed)}. "
            "Free some space, or leave out the history of requests."
        )

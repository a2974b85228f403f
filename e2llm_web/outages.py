"""What a person reads while the database or the disk under it is not what it should be."""

from __future__ import annotations

import shutil

from django.conf import settings
from django.db import DatabaseError, InterfaceError, OperationalError

LOW_DISK_BYTES = 200 * 10**6
COME_BACK_SECONDS = 10
OUTAGES: tuple[type[BaseException], ...] = (OperationalError, InterfaceError)


def low_disk() -> str:
    """Where space runs out and how much is left; empty while there is enough."""
    free = shutil.disk_usage(settings.DATA_DIR).free
    if free >= LOW_DISK_BYTES:
        return ""
    return f"The disk of the data folder {settings.DATA_DIR} has {free / 1e6:.0f} MB left. Free some space there."


def cause(error: BaseException) -> str:
    """The outage behind an error of the database, in words."""
    assert isinstance(error, (DatabaseError, InterfaceError)), "other errors are mistakes of ours"
    text = str(error)
    if "locked" in text:
        return "Another program has kept the database locked for too long."
    if "full" in text or "No space left" in text or "disk I/O" in text:
        return (
            low_disk() or f"The disk of the data folder {settings.DATA_DIR} is full. Free some space there."
        )
    return "The database does not answer. Start it again, or see why it stopped."

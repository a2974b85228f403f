"""The database as it was before an upgrade changed its tables, so that the old version can go on with it."""

from __future__ import annotations

import os
import sqlite3
from datetime import UTC, datetime
from pathlib import Path

from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from upkeep.runner import copies

KEPT = 3


def copy_before_upgrade() -> Path | None:
    """A copy of an SQLite database that is about to be migrated; None when it is new, up to date, or another kind.

    PostgreSQL has tools of its own for that, and may lie on a machine whose disk is not ours.
    """
    if connection.vendor != "sqlite" or not has_pending_migrations():
        return None
    copies.check_room()
    target = copies.folder() / f"before-upgrade-{datetime.now(UTC):%Y%m%dT%H%M%S}Z.sqlite3"
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    with sqlite3.connect(target) as copy:
        connection.connection.backup(copy)
        copy.execute("PRAGMA journal_mode=DELETE")  # one file, whoever opens it
    copy.close()
    for old in sorted(copies.folder().glob("before-upgrade-*.sqlite3"))[:-KEPT]:
        old.unlink()
    return target


def has_pending_migrations() -> bool:
    """Whether tables that are there are about to change."""
    executor = MigrationExecutor(connection)
    is_new = not executor.loader.applied_migrations
    return not is_new and bool(executor.migration_plan(executor.loader.graph.leaf_nodes()))

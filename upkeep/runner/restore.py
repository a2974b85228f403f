"""A copy of the site put back into an empty data folder."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import DataError, IntegrityError, connection, transaction
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.migration import Migration

from accounts import vault
from accounts.models import User
from upkeep.runner import archive, rows
from upkeep.runner.archive import BadArchive, Manifest, Opened, Report

BLOCK_BYTES = 2**20
MISFITS = (DataError, IntegrityError, LookupError, ValidationError, ValueError)  # rows that no table takes


class CannotRestore(Exception):
    """The archive is sound, but not for this place; the text names the remedy."""


def restore(path: Path, passphrase: str | None, report: Report) -> Manifest:
    """Fill the empty database from the archive, in the shape it had, and bring it to this version's.

    All or nothing: what fails on the way leaves the database and the key files as they were.
    """
    with archive.opened(path, passphrase) as opened:
        check_versions(opened.manifest)
        check_digests(opened)
        check_empty()
        with keys_in_place(opened), all_or_nothing():
            fill(opened, report)
            report(0.9, "Bringing the database up to date")
            migrate(MigrationExecutor(connection).loader.graph.leaf_nodes())
    return opened.manifest


@contextmanager
def all_or_nothing() -> Iterator[None]:
    """One transaction around tables and rows; SQLite alters tables only while it checks no foreign keys."""
    with connection.constraint_checks_disabled(), transaction.atomic():
        yield


def migrate(targets: list[tuple[str, str]]) -> MigrationExecutor:
    executor = MigrationExecutor(connection, after_migration)
    executor.migrate(targets)
    return executor


def after_migration(event: str, migration: Migration | None = None, fake: bool | None = None) -> None:
    """PostgreSQL alters no table in a transaction that has written rows whose checks still wait."""
    if event in ("apply_success", "unapply_success"):
        connection.check_constraints()


def check_versions(manifest: Manifest) -> None:
    known = MigrationExecutor(connection).loader.graph.nodes
    newer = [f"{app} {name}" for app, name in manifest.migrations.items() if (app, name) not in known]
    if newer:
        raise CannotRestore(
            f"The backup was made by version {manifest.version}, and this is {archive.version()}, which does not "
            f"know {', '.join(newer)}. Restore it with that version or a newer one."
        )


def check_digests(opened: Opened) -> None:
    for label, expected in opened.manifest.digests.items():
        found = hashlib.sha256()
        file = opened.member(f"{label}.jsonl")
        while block := file.read(BLOCK_BYTES):
            found.update(block)
        if found.hexdigest() != expected:
            raise BadArchive(f"{label}.jsonl is not what was written into the backup.")


def check_empty() -> None:
    tables = connection.introspection.table_names()
    if User._meta.db_table in tables and User.objects.exists():
        raise CannotRestore(
            f"The database of {settings.DATA_DIR} is in use: it has users. A backup is restored into an empty one. "
            "Set E2LLM_DATA to a new folder (and DATABASE_URL to an empty database), or move the old one away."
        )


@contextmanager
def keys_in_place(opened: Opened) -> Iterator[None]:
    """The key files of the archive, written; those that were there come back when what follows fails."""
    files = key_files(opened)
    before = {path: path.read_bytes() if path.exists() else None for path in files}
    try:
        for path, content in files.items():
            write_private(path, content)
        yield
    except BaseException:
        for path, old in before.items():
            path.unlink(missing_ok=True) if old is None else write_private(path, old)
        raise


def key_files(opened: Opened) -> dict[Path, bytes]:
    """Key files from the archive; none when it has none and those that lie here are the right ones."""
    vault_file = vault.key_file()
    if opened.keys:
        if vault_file.exists() and vault_file.read_bytes() != opened.keys[vault_file.name]:
            raise CannotRestore(f"{vault_file} holds other keys. Move it away; the backup brings its own.")
        return {Path(settings.DATA_DIR) / name: content for name, content in opened.keys.items()}
    present = vault.key_ids() if vault_file.exists() else []
    if not set(opened.manifest.vault_keys) <= set(present):
        raise CannotRestore(
            f"The backup holds no keys, and {vault_file} is not the file that its secrets were encrypted with. "
            "Copy vault.keys and secret.key of the old data folder there first, or restore a sealed backup."
        )
    return {}


def write_private(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)


def fill(opened: Opened, report: Report) -> None:
    """Make the tables as the archive has them, and write its rows."""
    manifest = opened.manifest
    targets = list(manifest.migrations.items())
    state = migrate(targets).loader.project_state(targets).apps
    try:
        models = [state.get_model(label) for label in manifest.tables]
        for number, model in enumerate(models):
            label = model._meta.label
            report(0.9 * number / len(models), f"Restoring {model._meta.verbose_name_plural}")
            file = io.TextIOWrapper(opened.member(f"{label}.jsonl"), encoding="utf-8")
            count = rows.read(model, file)
            if count != manifest.tables[label]:
                raise BadArchive(f"{label} has {count} rows of {manifest.tables[label]}.")
        connection.check_constraints()
        rows.reset_sequences(models)
    except MISFITS as error:
        raise BadArchive(f"Its rows do not fit its tables: {error}.") from None

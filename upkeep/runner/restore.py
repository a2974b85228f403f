"""A copy of the site put back into an empty data folder."""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path

from django.conf import settings
from django.core.management import call_command
from django.db import IntegrityError, connection, transaction
from django.db.migrations.executor import MigrationExecutor

from accounts import vault
from accounts.models import User
from upkeep.runner import archive, rows
from upkeep.runner.archive import BadArchive, Manifest, Opened, Report

BLOCK_BYTES = 2**20


class CannotRestore(Exception):
    """The archive is sound, but not for this place; the text names the remedy."""


def restore(path: Path, passphrase: str | None, report: Report) -> Manifest:
    """Fill the empty database from the archive, in the shape it had, and bring it to this version's."""
    with archive.opened(path, passphrase) as opened:
        check_versions(opened.manifest)
        check_digests(opened)
        check_empty()
        written = put_keys(opened)
        try:
            fill(opened, report)
        except BaseException:
            for key_file in written:
                key_file.unlink()
            raise
    report(0.9, "Bringing the database up to date")
    call_command("migrate", interactive=False, verbosity=0)
    return opened.manifest


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


def put_keys(opened: Opened) -> list[Path]:
    """Key files from the archive, or those that lie here already when they are the right ones; returns the new ones."""
    vault_file = vault.key_file()
    if opened.keys:
        if vault_file.exists() and vault_file.read_bytes() != opened.keys[vault_file.name]:
            raise CannotRestore(f"{vault_file} holds other keys. Move it away; the backup brings its own.")
        files = {Path(settings.DATA_DIR) / name: content for name, content in opened.keys.items()}
        new = [path for path in files if not path.exists()]
        for path, content in files.items():
            write_private(path, content)
        return new
    present = vault.key_ids() if vault_file.exists() else []
    if not set(opened.manifest.vault_keys) <= set(present):
        raise CannotRestore(
            f"The backup holds no keys, and {vault_file} is not the file that its secrets were encrypted with. "
            "Copy vault.keys and secret.key of the old data folder there first, or restore a sealed backup."
        )
    return []


def write_private(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)


def fill(opened: Opened, report: Report) -> None:
    manifest = opened.manifest
    targets = list(manifest.migrations.items())
    executor = MigrationExecutor(connection)
    executor.migrate(targets)
    state = executor.loader.project_state(targets).apps
    models = [state.get_model(label) for label in manifest.tables]
    try:
        with transaction.atomic():
            for number, model in enumerate(models):
                label = model._meta.label
                report(0.9 * number / len(models), f"Restoring {model._meta.verbose_name_plural}")
                file = io.TextIOWrapper(opened.member(f"{label}.jsonl"), encoding="utf-8")
                count = rows.read(model, file)
                if count != manifest.tables[label]:
                    raise BadArchive(f"{label} has {count} rows of {manifest.tables[label]}.")
            connection.check_constraints()
            rows.reset_sequences(models)
    except IntegrityError as error:
        raise BadArchive(f"Its rows do not fit together: {error}.") from None

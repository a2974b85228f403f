"""A copy of the site as one file: what it holds, how it is written, how it is opened."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import IO, Any

from django.apps import apps
from django.conf import settings
from django.db import connection, transaction
from django.db.migrations.loader import MigrationLoader

from accounts import seal, vault
from upkeep.runner import rows

FORMAT = "e2llm-backup/1"
MANIFEST = "manifest.json"
WHOLE = "backup.tar.gz"
SEALED_SUFFIX = ".sealed"
KEY_FILES = ("vault.keys", "secret.key")
UNTOLD_SETTINGS = ("E2LLM_SECRET_KEY", "E2LLM_EMAIL_PASSWORD", "E2LLM_DATA")
BLOCK_BYTES = 2**20

Report = Callable[[float, str], None]


class BadArchive(Exception):
    """The file is no backup, is damaged, or was made by a version that this one does not know."""


@dataclass(frozen=True)
class Manifest:
    """What an archive says about itself."""

    format: str
    version: str
    made_at: str
    database: str
    with_history: bool
    migrations: dict[str, str]
    tables: dict[str, int]
    digests: dict[str, str]
    vault_keys: list[str]
    environment: dict[str, str]

    @classmethod
    def from_bytes(cls, content: bytes) -> Manifest:
        try:
            value = json.loads(content)
            if value.get("format") != FORMAT:
                raise BadArchive(f"Its format is {value.get('format')!r}, and this version reads {FORMAT}.")
            return cls(**value)
        except (ValueError, TypeError, AttributeError) as error:
            raise BadArchive(f"Its {MANIFEST} cannot be read: {error}.") from None


def version() -> str:
    project = tomllib.loads((settings.BASE_DIR / "pyproject.toml").read_text())["project"]
    return str(project["version"])


def migrations() -> dict[str, str]:
    """The newest migration of each app of ours."""
    loader = MigrationLoader(None, ignore_no_migrations=True)
    return {app: name for app, name in loader.graph.leaf_nodes() if app in rows.OUR_APPS}


def environment() -> dict[str, str]:
    """Settings of the site that come from outside, but for secrets and the place of the data."""
    named = {name: value for name, value in os.environ.items() if name.startswith("E2LLM_")}
    return {name: value for name, value in named.items() if name not in UNTOLD_SETTINGS}


def make(target: Path, *, with_history: bool, report: Report) -> Manifest:
    """Write a copy of the database as it is at one moment; key files are not in it."""
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder, one_moment():
        draft = Path(folder)
        counts = write_tables(draft, with_history, report)
        manifest = Manifest(
            format=FORMAT,
            version=version(),
            made_at=datetime.now(UTC).isoformat(),
            database=connection.vendor,
            with_history=with_history,
            migrations=migrations(),
            tables=counts,
            digests={label: digest(draft / f"{label}.jsonl") for label in counts},
            vault_keys=vault.key_ids(),
            environment=environment(),
        )
        report(0.8, "Packing")
        pack(draft, manifest, draft / WHOLE)
        (draft / WHOLE).replace(target)
    return manifest


@contextmanager
def one_moment() -> Iterator[None]:
    """All reads see the database as it is now, and nobody who writes waits for them."""
    if connection.in_atomic_block:
        yield
    elif connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            cursor.execute("BEGIN DEFERRED")
            try:
                yield
            finally:
                cursor.execute("ROLLBACK")
    else:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            yield


def write_tables(folder: Path, with_history: bool, report: Report) -> dict[str, int]:
    models = [model for model in rows.tables(apps) if with_history or model._meta.label not in rows.HISTORY]
    counts = {}
    for number, model in enumerate(models):
        label = model._meta.label
        tick = partial(report, 0.8 * number / len(models), f"Copying {model._meta.verbose_name_plural}")
        tick()
        with private(folder / f"{label}.jsonl") as file:
            counts[label] = rows.write(
                model, io.TextIOWrapper(file, encoding="utf-8", write_through=True), tick
            )
    return counts


def private(path: Path) -> IO[bytes]:
    """A new file that its owner alone can read."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def pack(folder: Path, manifest: Manifest, target: Path) -> None:
    content = json.dumps(asdict(manifest), indent=1).encode()
    with private(target) as file, tarfile.open(fileobj=file, mode="w:gz", compresslevel=6) as archive:
        add(archive, MANIFEST, content)
        for label in manifest.tables:
            archive.add(folder / f"{label}.jsonl", f"{label}.jsonl")


def add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), 0o600
    archive.addfile(member, io.BytesIO(content))


def sealed(whole: Path, passphrase: str, target: IO[bytes]) -> None:
    """The archive with the key files beside it, unreadable without the passphrase."""
    with tempfile.TemporaryFile(dir=whole.parent) as draft:
        with tarfile.open(fileobj=draft, mode="w") as archive:
            archive.add(whole, WHOLE)
            for name in KEY_FILES:
                path = Path(settings.DATA_DIR) / name
                if path.exists():
                    add(archive, name, path.read_bytes())
        draft.seek(0)
        seal.seal(passphrase, draft, target)


@dataclass(frozen=True)
class Opened:
    """An archive that can be read, and the key files that came with it."""

    archive: tarfile.TarFile
    manifest: Manifest
    keys: dict[str, bytes]

    def member(self, name: str) -> IO[bytes]:
        return member(self.archive, name)


@contextmanager
def opened(path: Path, passphrase: str | None) -> Iterator[Opened]:
    """The archive in a file, sealed or not; BadArchive or SealBroken when it cannot be used."""
    with path.open("rb") as file, tempfile.TemporaryFile() as plain, tempfile.TemporaryFile() as inner:
        keys: dict[str, bytes] = {}
        source: IO[bytes] = file
        if seal.is_sealed(file):
            if not passphrase:
                raise BadArchive("It is sealed: give its passphrase with --passphrase-file.")
            seal.unseal(passphrase, file, plain)
            plain.seek(0)
            source, keys = unpacked(plain, inner)
        try:
            with tarfile.open(fileobj=source, mode="r:gz") as archive:
                yield Opened(archive, Manifest.from_bytes(member(archive, MANIFEST).read()), keys)
        except (tarfile.TarError, EOFError, OSError) as error:
            raise BadArchive(f"{path} is no backup, or it is damaged: {error}.") from None


def unpacked(plain: IO[bytes], inner: IO[bytes]) -> tuple[IO[bytes], dict[str, bytes]]:
    """What a sealed file holds: the archive and the key files."""
    with tarfile.open(fileobj=plain, mode="r:") as outer:
        whole = member(outer, WHOLE)
        while block := whole.read(BLOCK_BYTES):
            inner.write(block)
        inner.seek(0)
        present = set(outer.getnames())
        return inner, {name: member(outer, name).read() for name in KEY_FILES if name in present}


def member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    """A file of the archive, read where it lies: nothing of it is unpacked by the names it gives."""
    try:
        found: Any = archive.extractfile(name)
    except KeyError:
        raise BadArchive(f"{name} is missing in it.") from None
    if found is None:
        raise BadArchive(f"{name} is no file in it.")
    return found

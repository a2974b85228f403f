"""Put a copy of the site into an empty data folder."""

import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import OperationalError

from accounts.seal import SealBroken
from accounts.services import audit
from accounts.vault import VaultError
from upkeep.management.commands.backup import read_passphrase
from upkeep.runner.archive import BadArchive
from upkeep.runner.restore import CannotRestore, restore


class Command(BaseCommand):
    help = "Restore a backup into the empty data folder that E2LLM_DATA names."
    requires_migrations_checks = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", type=Path, help="the backup, sealed or not")
        parser.add_argument("--passphrase-file", type=Path, help="first line opens a sealed backup")

    def handle(self, *args: Any, file: Path, passphrase_file: Path | None, **options: Any) -> None:
        if not file.is_file():
            raise CommandError(f"Nothing was restored. {file} is not there or is no file. Name the backup.")
        try:
            manifest = restore(file, read_passphrase(passphrase_file), self.say)
        except (BadArchive, CannotRestore, SealBroken, VaultError, OSError, OperationalError) as error:
            raise CommandError(f"Nothing was restored. {error}") from None
        audit(None, "backup.restored", file.name, {"made": manifest.made_at, "version": manifest.version})
        rows = sum(manifest.tables.values())
        self.stdout.write(f"Restored {rows:,} rows of {manifest.made_at}, version {manifest.version}.")
        for name, value in manifest.environment.items():
            self.stdout.write(f"The old site ran with {name}={value}")
        self.stdout.write("Now: ./run up")

    def say(self, fraction: float, text: str) -> None:
        if sys.stderr.isatty():
            self.stderr.write(f"{fraction:4.0%} {text}")

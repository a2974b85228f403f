"""Copy the site into one file."""

import sys
import tempfile
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from accounts import seal, vault
from accounts.services import audit
from upkeep.runner import archive


class Command(BaseCommand):
    help = "Copy database and settings into one file; with a passphrase it is sealed and holds the key files too."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", type=Path, help="the file to write; it must not be there yet")
        parser.add_argument(
            "--passphrase-file",
            type=Path,
            help=f"seal it with the first line of this file, of {seal.LEAST_CHARACTERS} characters or more",
        )
        parser.add_argument(
            "--without-history", action="store_true", help="leave out single requests and traffic figures"
        )

    def handle(
        self,
        *args: Any,
        file: Path,
        passphrase_file: Path | None,
        without_history: bool,
        **options: Any,
    ) -> None:
        if file.exists():
            raise CommandError(f"{file} is there already. Name a file that is not.")
        passphrase = read_passphrase(passphrase_file)
        if passphrase is not None and len(passphrase) < seal.LEAST_CHARACTERS:
            raise CommandError(f"The passphrase needs {seal.LEAST_CHARACTERS} characters or more.")
        try:
            self.write(file, passphrase, with_history=not without_history)
        except (OSError, vault.VaultError) as error:
            raise CommandError(f"The backup was not written: {error}") from None
        audit(None, "backup.written", file.name, {"sealed": passphrase is not None, "by": "command"})
        self.stdout.write(f"{file} is written, {file.stat().st_size:,} bytes.")
        if passphrase is None:
            self.stdout.write(
                "It is not sealed: people, addresses and texts can be read in it, SSH and API secrets cannot. "
                "To restore it, keep vault.keys and secret.key of the data folder somewhere safe."
            )

    def write(self, file: Path, passphrase: str | None, *, with_history: bool) -> None:
        if passphrase is None:
            archive.make(file, with_history=with_history, report=self.say)
            return
        with tempfile.TemporaryDirectory(dir=file.parent) as folder:
            whole = Path(folder) / archive.WHOLE
            archive.make(whole, with_history=with_history, report=self.say)
            with archive.private(file) as target:
                archive.sealed(whole, passphrase, target)

    def say(self, fraction: float, text: str) -> None:
        if sys.stderr.isatty():
            self.stderr.write(f"{fraction:4.0%} {text}")


def read_passphrase(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        raise CommandError(f"The passphrase file {path} is not there. Name a file that is.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"The passphrase cannot be read from {path}: {error}") from None
    if not lines:
        raise CommandError(f"{path} is empty. Its first line is to be the passphrase.")
    return lines[0]

"""Secrets at rest: the only file that knows cryptography. Keys live in one file outside the database."""

import hashlib
import hmac
import os
from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from django.conf import settings
from django.db import models


class VaultError(Exception):
    """The key file is missing, unreadable, or does not fit the secrets in the database."""


def key_file() -> Path:
    return Path(settings.DATA_DIR) / "vault.keys"


def create_key_file() -> None:
    """Write a first key, readable by the owner alone; does nothing when the file is there."""
    path = key_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    with os.fdopen(descriptor, "wb") as file:
        file.write(Fernet.generate_key() + b"\n")


def _keys() -> list[bytes]:
    try:
        lines = key_file().read_bytes().split()
    except FileNotFoundError:
        raise VaultError(
            f"The key file {key_file()} is missing, so stored secrets cannot be read. Restore it from "
            "the backup, or delete the stored SSH identities and API keys and enter them again."
        ) from None
    if not lines:
        raise VaultError(f"The key file {key_file()} is empty. Restore it from the backup.")
    return lines


def _fernet() -> MultiFernet:
    try:
        return MultiFernet([Fernet(key) for key in _keys()])
    except ValueError as error:
        raise VaultError(
            f"The key file {key_file()} is damaged: {error}. Restore it from the backup."
        ) from None


def encrypt(text: str) -> str:
    return _fernet().encrypt(text.encode()).decode()


def decrypt(token: str) -> str:
    try:
        return _fernet().decrypt(token.encode()).decode()
    except InvalidToken:
        raise VaultError(
            f"A stored secret does not open with the keys in {key_file()}. Restore the key file that was in "
            "use when it was stored, or enter the secret again."
        ) from None


def pepper_id() -> str:
    """Names the key that new digests are made with."""
    return key_ids()[0]


def key_ids() -> list[str]:
    """Names of all keys, which tell nothing of the keys themselves."""
    return [hashlib.sha256(key).hexdigest()[:8] for key in _keys()]


def peppered_digest(text: str, pepper: str) -> str:
    """HMAC-SHA256 of `text` under the key called `pepper`, in hex; VaultError when that key is gone."""
    for key in _keys():
        if hashlib.sha256(key).hexdigest()[:8] == pepper:
            return hmac.new(b"digest:" + key, text.encode(), hashlib.sha256).hexdigest()
    raise VaultError(f"The key {pepper} is no longer in {key_file()}; API keys made with it must be renewed.")


class EncryptedTextField(models.TextField):
    """Text that stands encrypted in the database and plain in Python."""

    def get_prep_value(self, value: str | None) -> str | None:
        return encrypt(value) if value else value

    def from_db_value(self, value: str | None, *_: object) -> str | None:
        return decrypt(value) if value else value

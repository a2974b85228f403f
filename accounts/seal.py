"""Files sealed with a passphrase: unreadable without it, and a changed, cut or mixed-up file is noticed.

AES-256-GCM over pieces of 1 MiB under a key that scrypt makes from the passphrase and a salt of the file's own.
The nonce of a piece is its number and whether it is the last, so no piece can be moved, left out or added.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import IO

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

MARK = b"e2llm-sealed/1\n"
SALT_BYTES = 16
PIECE_BYTES = 2**20
TAG_BYTES = 16
COST = 2**15  # 32 MB and about 0.1 s for each guess
LEAST_CHARACTERS = 12


class SealBroken(Exception):
    """The passphrase is another one, or the file is damaged; nobody can tell which."""


def seal(passphrase: str, source: IO[bytes], target: IO[bytes]) -> None:
    salt = os.urandom(SALT_BYTES)
    cipher = AESGCM(_key(passphrase, salt))
    target.write(MARK + salt)
    for number, piece, is_last in _pieces(source, PIECE_BYTES):
        target.write(cipher.encrypt(_nonce(number, is_last), piece, None))


def is_sealed(file: IO[bytes]) -> bool:
    """Whether the file is a sealed one; it is read from its beginning, and left there."""
    start = file.read(len(MARK))
    file.seek(0)
    return start == MARK


def unseal(passphrase: str, source: IO[bytes], target: IO[bytes]) -> None:
    """Write the plain content; SealBroken leaves a target that must not be used."""
    head = source.read(len(MARK) + SALT_BYTES)
    cipher = AESGCM(_key(passphrase, head[len(MARK) :]))
    try:
        for number, piece, is_last in _pieces(source, PIECE_BYTES + TAG_BYTES):
            target.write(cipher.decrypt(_nonce(number, is_last), piece, None))
    except (InvalidTag, ValueError):
        raise SealBroken(
            "The passphrase does not open the file, or the file is damaged or cut short."
        ) from None


def _key(passphrase: str, salt: bytes) -> bytes:
    return Scrypt(salt=salt, length=32, n=COST, r=8, p=1).derive(passphrase.encode())


def _nonce(number: int, is_last: bool) -> bytes:
    return number.to_bytes(11, "big") + (b"\1" if is_last else b"\0")


def _pieces(source: IO[bytes], size: int) -> Iterator[tuple[int, bytes, bool]]:
    number, piece = 0, source.read(size)
    while True:
        following = source.read(size)
        yield number, piece, not following
        if not following:
            return
        number, piece = number + 1, following

"""Sealed files: back as they were, and any change is noticed."""

from __future__ import annotations

import io

import pytest

from accounts import seal
from accounts.seal import PIECE_BYTES, TAG_BYTES, SealBroken

HEAD = len(seal.MARK) + seal.SALT_BYTES


def sealed(content: bytes, passphrase: str = "a long passphrase") -> bytes:
    target = io.BytesIO()
    seal.seal(passphrase, io.BytesIO(content), target)
    return target.getvalue()


def opened(content: bytes, passphrase: str = "a long passphrase") -> bytes:
    target = io.BytesIO()
    seal.unseal(passphrase, io.BytesIO(content), target)
    return target.getvalue()


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES])
def test_what_was_sealed_comes_back(size: int) -> None:
    content = bytes(range(256)) * (size // 256) + bytes(size % 256)
    made = sealed(content)
    assert seal.is_sealed(io.BytesIO(made))
    assert opened(made) == content
    assert len(content) < 64 or content[:64] not in made


def test_another_passphrase_opens_nothing() -> None:
    with pytest.raises(SealBroken, match="passphrase"):
        opened(sealed(b"secret"), "another passphrase")


def test_the_same_content_is_sealed_differently_each_time() -> None:
    assert sealed(b"secret") != sealed(b"secret")


def test_a_changed_cut_or_shuffled_file_is_noticed() -> None:
    made = sealed(bytes(3 * PIECE_BYTES))
    piece = PIECE_BYTES + TAG_BYTES
    changed = made[:-1] + bytes([made[-1] ^ 1])
    cut = made[: HEAD + 2 * piece]
    shuffled = (
        made[:HEAD]
        + made[HEAD + piece : HEAD + 2 * piece]
        + made[HEAD : HEAD + piece]
        + made[HEAD + 2 * piece :]
    )
    for broken in (changed, cut, shuffled, made[:HEAD], made + b"more"):
        with pytest.raises(SealBroken):
            opened(broken)

"""What the operating system says, as a person reads it."""

from __future__ import annotations

import asyncio
import socket

import pytest

from inventory.core.gguf import GgufError, header_from_bytes
from inventory.remote.reasons import reason


@pytest.mark.parametrize(
    "error, text",
    [
        (OSError(111, "Connect call failed ('127.0.0.11', 9)"), "nothing listens on this port there"),
        (
            OSError(
                "Multiple exceptions: [Errno 111] Connect call failed ('::1', 9, 0, 0), [Errno 111] Connect"
            ),
            "nothing listens on this port there",
        ),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "this name is not known"),
        (socket.gaierror(socket.EAI_FAIL, "x"), "this name leads to no address"),
        (OSError(28, "No space left on device"), "no space left on device"),
        (ValueError("Connection lost."), "Connection lost"),
        (OSError(), "OSError"),
    ],
)
def test_a_failed_connection_has_a_plain_reason(error: Exception, text: str) -> None:
    assert reason(error) == text


async def test_a_port_on_which_nothing_listens_is_said_so() -> None:
    with pytest.raises(OSError) as refused:
        await asyncio.open_connection("127.0.0.99", 9)
    assert reason(refused.value) == "nothing listens on this port there"


@pytest.mark.parametrize(
    "beginning, text",
    [
        (b"version https://git-lfs.github.com/spec/v1", "Git LFS pointer"),
        (b"PK\x03\x04", "zip or PyTorch file"),
        (b"<!doctype html>", "web page"),
        (bytes(8), "unfinished download"),
        (b"\x13{8\x1a", "damaged or something else"),
    ],
)
def test_a_file_that_is_no_gguf_is_named_without_bytes(beginning: bytes, text: str) -> None:
    content = beginning + bytes(64)
    with pytest.raises(GgufError, match=text) as refused:
        header_from_bytes(content, len(content))
    assert "\\x" not in str(refused.value) and "b'" not in str(refused.value)

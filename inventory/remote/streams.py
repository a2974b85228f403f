"""Feeds a program's stdin and collects what it prints, within bounds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import asyncssh

from inventory.remote.errors import RemoteError

CHUNK_BYTES = 256 * 1024
MAX_OUTPUT_BYTES = 64 * 1024 * 1024

ReportBytes = Callable[[int, int], None]


async def _feed(writer: asyncio.StreamWriter, source: bytes | Path, report: ReportBytes | None) -> None:
    total = len(source) if isinstance(source, bytes) else source.stat().st_size
    sent = 0
    async for part in _parts(source):
        writer.write(part)
        await writer.drain()
        sent += len(part)
        if report is not None:
            report(sent, total)
    if not writer.is_closing():  # uvloop refuses the end of a pipe whose program has already gone
        writer.write_eof()


async def _parts(source: bytes | Path) -> AsyncIterator[bytes]:
    if isinstance(source, bytes):
        for start in range(0, len(source), CHUNK_BYTES):
            yield source[start : start + CHUNK_BYTES]
        return
    with source.open("rb") as file:
        while part := file.read(CHUNK_BYTES):
            yield part


async def _collect(source: asyncio.StreamReader, into: bytearray) -> None:
    while part := await source.read(CHUNK_BYTES):
        into += part
        if len(into) > MAX_OUTPUT_BYTES:
            raise RemoteError(f"a command printed more than {MAX_OUTPUT_BYTES >> 20} MiB")


async def talk(
    pipes: tuple[Any, Any, Any],
    source: bytes | Path,
    collected: tuple[bytearray, bytearray],
    report: ReportBytes | None,
) -> None:
    """Feed a program and collect what it prints; one that ends without reading all of its stdin may."""
    stdin, stdout, stderr = pipes
    feed = asyncio.create_task(_feed(stdin, source, report))
    try:
        await asyncio.gather(_collect(stdout, collected[0]), _collect(stderr, collected[1]))
        with suppress(BrokenPipeError, ConnectionResetError, asyncssh.Error):
            await feed
    finally:
        feed.cancel()

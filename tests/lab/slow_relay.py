"""A TCP relay that delays every piece, for kernels that cannot delay packets themselves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

PIECE_BYTES = 65536


@asynccontextmanager
async def slow_relay(address: str, port: int, delay_seconds: float) -> AsyncIterator[int]:
    """A local port that leads to `address`; each piece arrives `delay_seconds` late, one way."""

    async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(address, port)
        with suppress(ConnectionError):
            await asyncio.gather(
                pass_on(reader, far_writer, delay_seconds), pass_on(far_reader, writer, delay_seconds)
            )

    server = await asyncio.start_server(receive, "127.0.0.1", 0)
    async with server:
        yield int(server.sockets[0].getsockname()[1])


async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_seconds: float) -> None:
    while piece := await reader.read(PIECE_BYTES):
        await asyncio.sleep(delay_seconds)
        writer.write(piece)
        await writer.drain()
    writer.close()

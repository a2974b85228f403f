"""The server's side of a connection: pieces of a started answer can be written without waking a task for each."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

EXTENSION = "e2llm.wire"


class Wire:
    """Writes chunks of an answer that was begun without a length."""

    def __init__(self, transport: asyncio.Transport, flow: FlowControl) -> None:
        self._transport = transport
        self._flow = flow

    @property
    def is_free(self) -> bool:
        """Whether the client is there and reads as fast as we write."""
        return not (self._flow.write_paused or self._transport.is_closing())

    def write(self, piece: bytes) -> bool:
        """False, and nothing written, while the client is not there or reads too slowly."""
        if self._flow.write_paused or self._transport.is_closing():
            return False
        self._transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        return True


class Connection(HttpToolsProtocol):
    """uvicorn's connection (`--http serving.gateway.wire:Connection`), with its wire as an extension of each request.

    Without it an answer is right as well: then every event wakes a task, which is half of what the gateway costs.
    """

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        writable = cast(asyncio.Transport, transport)  # uvloop's transports are not subclasses of it
        super().connection_made(writable)
        self.wire = Wire(writable, self.flow)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        extensions: dict[str, dict[object, Any]] = {EXTENSION: {"wire": self.wire}}
        self.scope["extensions"] = extensions

"""Talks HTTP with the llama-servers behind the gateway, fast enough for thousands of events a second.

The only file that knows httptools. Every fault becomes one of the errors below; whether a retry is allowed depends
on which one. A connection serves one request: a kept one would occupy a thread of llama-server, and closing it is
the only way to cancel a generation.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import httptools

from inventory.remote.reasons import reason
from serving.core.sse import EventSplitter, compact, plain_events

BUFFER_BYTES = 64 * 1024
MAX_BODY_BYTES = 64 * 2**20


class UpstreamError(Exception):
    """A replica did not do what it was asked."""


class ConnectFailed(UpstreamError):
    """No connection: nothing was sent, another replica may be tried."""


class ConnectionLost(UpstreamError):
    """The connection ended before the answer did."""


class TooSlow(UpstreamError):
    """A deadline passed: for the first token, the next one, or the whole answer."""


class Declined(UpstreamError):
    """The replica answered with an HTTP error."""

    def __init__(
        self, status: int, message: str, kind: str, details: Mapping[str, Any], request_id: str = ""
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.details = details
        self.request_id = request_id  # of a server that names its answers


@dataclass(frozen=True)
class Target:
    """Where a replica answers. The host is an IPv4 literal from our own table, never from a request."""

    host: str
    port: int
    api_key: str


@dataclass(frozen=True)
class Deadlines:
    """Seconds a replica may take; pings do not extend them."""

    connect_seconds: float = 5.0
    first_token_seconds: float = 120.0
    inter_token_seconds: float = 30.0
    total_seconds: float = 3600.0


class Exchange(asyncio.Protocol):
    """One request and its answer on a connection of its own."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.parser = httptools.HttpResponseParser(self)
        self.transport: asyncio.Transport | None = None
        self.status = 0
        self.request_id = ""
        self.pieces: list[bytes] = []
        self.buffered_bytes = 0
        self.is_complete = False
        self.is_paused = False
        self.error: UpstreamError | None = None
        self.waiter: asyncio.Future[None] | None = None
        self.shortcut: Callable[[bytes], bool] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transports are not subclasses of it

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.fail(ConnectionLost(f"the replica sent broken HTTP: {error}"))
        if self.waiter is None or self.waiter.done():
            return
        if self.shortcut is not None and self.pieces and not (self.is_complete or self.is_paused):
            piece = self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)
            if self.shortcut(piece):
                self.pieces.clear()
                self.buffered_bytes = 0
                return
        self.waiter.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.is_complete:
            self.fail(ConnectionLost("the replica closed the connection in the middle of the answer"))

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"x-request-id":
            self.request_id = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self.parser.get_status_code()

    def on_body(self, piece: bytes) -> None:
        self.pieces.append(piece)
        self.buffered_bytes += len(piece)
        if self.buffered_bytes > BUFFER_BYTES and not self.is_paused and self.transport is not None:
            self.is_paused = True
            self.transport.pause_reading()

    def on_message_complete(self) -> None:
        self.is_complete = True

    def fail(self, error: UpstreamError) -> None:
        if self.error is None:
            self.error = error
        self._wake()

    async def until_headers(self) -> None:
        while not self.status:
            await self._change()

    async def read(self) -> bytes:
        """What has arrived since the last call; empty at the end of the answer."""
        while not self.pieces:
            if self.is_complete:
                return b""
            await self._change()
        piece = self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)
        self.pieces.clear()
        self.buffered_bytes = 0
        if self.is_paused and self.transport is not None:
            self.is_paused = False
            self.transport.resume_reading()
        return piece

    async def read_all(self) -> bytes:
        whole = bytearray()
        while piece := await self.read():
            whole += piece
            if len(whole) > MAX_BODY_BYTES:
                raise ConnectionLost(f"the replica's answer is longer than {MAX_BODY_BYTES} bytes")
        return bytes(whole)

    def close(self) -> None:
        """Cancel whatever the replica still does for this request."""
        self.is_complete = True
        self.shortcut = None
        if self.transport is not None:
            self.transport.abort()

    async def _change(self) -> None:
        if self.error is not None:
            raise self.error
        self.waiter = self.loop.create_future()
        try:
            await self.waiter
        finally:
            self.waiter = None

    def _wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


class Stream:
    """The events of one streamed answer, with deadlines that only events move."""

    def __init__(self, exchange: Exchange, deadlines: Deadlines) -> None:
        self.exchange = exchange
        self.deadlines = deadlines
        self.splitter = EventSplitter()
        loop = exchange.loop
        self.ends_at = loop.time() + deadlines.total_seconds
        self.due_at = loop.time() + deadlines.first_token_seconds
        self.waits_for = "first token"
        self.timer = loop.call_at(min(self.due_at, self.ends_at), self._check_deadline)

    async def events(self) -> bytes:
        """The whole events that have arrived, at least one; empty at the end."""
        while piece := await self.exchange.read():
            if events := self.splitter.feed(piece):
                self._came()
                return events
        return b""

    def offer_to(self, take: Callable[[bytes, int], bool]) -> None:
        """Offer plain events and their number to `take` as they arrive, while no earlier one waits.

        What it declines comes from `events`. All that runs for an event is kept short: there are thousands a second.
        """
        now, seconds = self.exchange.loop.time, self.deadlines.inter_token_seconds

        def shortcut(piece: bytes) -> bool:
            number = 0 if self.splitter.rest else plain_events(piece)
            if not number or not take(piece, number):
                return False
            self.due_at = now() + seconds
            return True

        self.exchange.shortcut = shortcut

    def _came(self) -> None:
        self.due_at = self.exchange.loop.time() + self.deadlines.inter_token_seconds
        if self.waits_for == "next token":
            return
        self.waits_for = "next token"
        self.timer.cancel()  # the next token may be due long before the first one was
        self.timer = self.exchange.loop.call_at(min(self.due_at, self.ends_at), self._check_deadline)

    def close(self) -> None:
        self.timer.cancel()
        self.exchange.close()

    def _check_deadline(self) -> None:
        now = self.exchange.loop.time()
        if self.exchange.pieces and self.exchange.waiter is None:
            # It is the client that is slow: the replica waits to be read.
            self.due_at = now + self.deadlines.inter_token_seconds
        due_at = min(self.due_at, self.ends_at)
        if now < due_at:
            self.timer = self.exchange.loop.call_at(due_at, self._check_deadline)
        elif now >= self.ends_at:
            self.exchange.fail(TooSlow(f"no end of the answer within {self.deadlines.total_seconds:g} s"))
        else:
            first = self.waits_for == "first token"
            seconds = self.deadlines.first_token_seconds if first else self.deadlines.inter_token_seconds
            self.exchange.fail(TooSlow(f"no {self.waits_for} within {seconds:g} s"))


async def open_stream(
    target: Target,
    path: str,
    body: Mapping[str, Any],
    deadlines: Deadlines,
    headers: Mapping[str, str] | None = None,
) -> Stream:
    """Start a streamed generation; returns when the replica has begun to answer."""
    exchange = await _send(target, "POST", path, body, deadlines.connect_seconds, headers)
    stream = Stream(exchange, deadlines)
    try:
        await exchange.until_headers()
        if exchange.status != 200:
            raise _declined(exchange.status, await exchange.read_all(), exchange.request_id)
    except BaseException:
        stream.close()
        raise
    return stream


async def call(
    target: Target,
    method: str,
    path: str,
    body: Mapping[str, Any] | None = None,
    timeout_seconds: float = 30.0,
) -> Any:
    """One JSON call; the parsed answer, or one of the errors."""
    try:
        return json.loads(await _whole(target, method, path, body, timeout_seconds))
    except ValueError as error:
        raise ConnectionLost(f"{path}: the replica's answer is not JSON") from error


async def download(target: Target, path: str, timeout_seconds: float) -> bytes:
    """The bytes of a file that a replica serves."""
    return await _whole(target, "GET", path, None, timeout_seconds)


async def _whole(
    target: Target, method: str, path: str, body: Mapping[str, Any] | None, timeout_seconds: float
) -> bytes:
    exchange = None
    try:
        async with asyncio.timeout(timeout_seconds):
            exchange = await _send(target, method, path, body, timeout_seconds)
            await exchange.until_headers()
            content = await exchange.read_all()
    except TimeoutError:
        raise TooSlow(f"{path}: no answer within {timeout_seconds:g} s") from None
    finally:
        if exchange is not None:
            exchange.close()
    if exchange.status != 200:
        raise _declined(exchange.status, content)
    return content


async def _send(
    target: Target,
    method: str,
    path: str,
    body: Mapping[str, Any] | None,
    connect_seconds: float,
    headers: Mapping[str, str] | None = None,
) -> Exchange:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(connect_seconds):
            transport, exchange = await loop.create_connection(
                lambda: Exchange(loop), target.host, target.port
            )
    except TimeoutError as error:
        text = f"{target.host}:{target.port}: no connection within {connect_seconds:g} s"
        raise ConnectFailed(text) from error
    except OSError as error:
        raise ConnectFailed(f"{target.host}:{target.port}: {reason(error)}") from error
    content = b"" if body is None else compact(body)
    extra = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: {target.host}:{target.port}\r\nAuthorization: Bearer {target.api_key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\nConnection: close\r\n{extra}\r\n"
    )
    transport.write(head.encode("ascii") + content)
    return exchange


def _declined(status: int, answer: bytes, request_id: str = "") -> Declined:
    try:
        error = json.loads(answer)["error"]
        return Declined(status, str(error["message"]), str(error.get("type", "")), error, request_id)
    except (ValueError, KeyError, TypeError, AttributeError):
        return Declined(status, f"HTTP {status} without an explanation", "", {}, request_id)

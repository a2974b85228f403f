"""One HTTP request of a client over bare ASGI: its headers and body within limits, its answer, its departure."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from serving.core.sse import compact
from serving.gateway.errors import ApiError
from serving.gateway.limits import Limits
from serving.gateway.wire import EXTENSION, Wire

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]

EVENT_STREAM = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


RECORDED_BYTES = 2**20


@dataclass
class Recording:
    """An answer as it was sent, to be sent again."""

    status: int = 0
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    pieces: list[bytes] = field(default_factory=list)
    size: int = 0
    has_ended: bool = False

    @property
    def is_whole(self) -> bool:
        return self.status == 200 and self.has_ended and self.size <= RECORDED_BYTES

    def add(self, piece: bytes) -> None:
        self.size += len(piece)
        if self.size <= RECORDED_BYTES:
            self.pieces.append(piece)


class Client:
    """The client's side of one request."""

    def __init__(self, scope: Message, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.has_query_key = any(name in scope["query_string"] for name in (b"key=", b"token="))
        self.request_id = ""
        self.has_started = False
        self.error_of: Callable[[int, str], dict[str, Any]] | None = None
        self.task: asyncio.Task[Any] | None = None
        self.was_dropped = ""
        self.recording: Recording | None = None
        self.extra_headers: list[tuple[bytes, bytes]] = []
        self._raw_headers = scope["headers"]
        self._writing_since: float | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._receive = receive
        self._send = send
        extension = scope.get("extensions", {}).get(EXTENSION)
        self._wire: Wire | None = extension and extension["wire"]

    def header(self, name: bytes) -> str:
        return self.headers.get(name, b"").decode("latin-1")

    @property
    def wants_timing(self) -> bool:
        return self.header(b"x-e2llm-timing") == "1"

    def authorization(self) -> str:
        """The key as a bearer; Anthropic's clients send it under a name of their own."""
        own = self.header(b"x-api-key") if self.path.startswith("/v1/messages") else ""
        return self.header(b"authorization") or (own and f"Bearer {own}")

    async def body(self, limits: Limits) -> bytes:
        """The whole body, or the refusal that its size, its speed or its encoding earns; then watch the client."""
        if self.header(b"content-encoding") not in ("", "identity"):
            raise ApiError(415, "encoding_unsupported", "send the body without a content encoding")
        announced = self.header(b"content-length")
        if announced.isdecimal() and int(announced) > limits.body_bytes:
            raise too_large(limits)
        try:
            async with asyncio.timeout(limits.body_seconds):
                body = await self._read(limits)
        except TimeoutError:
            raise ApiError(
                408, "body_timeout", f"the body did not arrive within {limits.body_seconds:g} s"
            ) from None
        self._watcher = asyncio.create_task(self._watch())
        return body

    def drop(self, reason: str) -> None:
        """End the work for this client, wherever it stands."""
        if self.task is not None and not self.was_dropped:
            self.was_dropped = reason
            self.task.cancel()

    def stop_watching(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()

    def is_stuck(self, now: float, limits: Limits) -> bool:
        return self._writing_since is not None and now - self._writing_since > limits.slow_reader_seconds

    async def start(self, status: int, headers: Headers) -> None:
        self.has_started = True
        named = [(b"x-request-id", self.request_id.encode()), *self.extra_headers]
        if self.recording is not None:
            self.recording.status, self.recording.headers = status, list(headers)
        await self._send({"type": "http.response.start", "status": status, "headers": [*headers, *named]})

    async def write(self, piece: bytes) -> None:
        if self.recording is not None:
            self.recording.add(piece)
        self._writing_since = time.monotonic()
        await self._send({"type": "http.response.body", "body": piece, "more_body": True})
        self._writing_since = None

    @property
    def takes_now(self) -> bool:
        """Whether `write_now` would write."""
        return self._wire is not None and self._wire.is_free

    def write_now(self, piece: bytes) -> bool:
        """Write a piece of the started event stream; false, and nothing done, when that would have to wait."""
        if self._wire is None or not self._wire.write(piece):
            return False
        if self.recording is not None:
            self.recording.add(piece)
        return True

    async def end(self, piece: bytes = b"") -> None:
        if self.recording is not None:
            self.recording.add(piece)
            self.recording.has_ended = True
        await self._send({"type": "http.response.body", "body": piece, "more_body": False})

    async def answer(self, status: int, content: bytes, content_type: bytes, headers: Headers = ()) -> None:
        length = str(len(content)).encode()
        await self.start(status, [(b"content-type", content_type), (b"content-length", length), *headers])
        await self.end(content)

    async def replay(self, recording: Recording) -> None:
        self.extra_headers.append((b"idempotent-replayed", b"true"))
        await self.start(recording.status, recording.headers)
        await self.end(b"".join(recording.pieces))

    async def json(self, status: int, value: Any, headers: Headers = ()) -> None:
        await self.answer(status, compact(value), b"application/json", headers)

    async def refuse(self, error: ApiError) -> None:
        # The rest of a refused body would be read as the next request.
        closes = [(b"connection", b"close")] if error.status in (408, 411, 413, 415, 431) else []
        shape = error.body if self.error_of is None else self.error_of(error.status, str(error))
        await self.json(error.status, shape, [*error.headers, *closes])

    def check_headers(self, limits: Limits) -> None:
        names = [name for name, _ in self._raw_headers]
        if b"content-length" in names and b"transfer-encoding" in names:
            raise ApiError(400, "ambiguous_length", "a request has one length: content-length or chunked")
        if sum(len(name) + len(value) + 4 for name, value in self._raw_headers) > limits.header_bytes:
            raise ApiError(431, "headers_too_large", f"headers over {limits.header_bytes} bytes")

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.drop("the client left")

    async def _read(self, limits: Limits) -> bytes:
        pieces = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            piece = message.get("body", b"")
            size += len(piece)
            if size > limits.body_bytes:
                raise too_large(limits)
            pieces.append(piece)
            if not message.get("more_body", False):
                return b"".join(pieces)


def too_large(limits: Limits) -> ApiError:
    return ApiError(413, "body_too_large", f"the body is larger than {limits.body_bytes} bytes")


class ClientGone(Exception):
    """The client closed the connection."""

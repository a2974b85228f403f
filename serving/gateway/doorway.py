"""The door of the gateway: a client gets seconds, bytes and connections to say what it wants, and no more.

uvicorn waits without end for a head that is half sent, and for a body that nobody reads.
"""

from __future__ import annotations

import asyncio
import resource

from serving.core.crowd import Crowd
from serving.core.sse import compact
from serving.gateway import wire
from serving.gateway.addresses import is_within
from serving.gateway.errors import ApiError
from serving.gateway.limits import Limits, from_environment

CROWDED = "e2llm.crowded"  # extension of a request whose address has too many connections
CROWDED_MORE = 64  # connections over the limit that are still told why they are refused
HEAD_SLACK = 4  # a head this many times over its limit is not read to its end
BODY_GRACE_SECONDS = 5.0  # the request itself answers first
SPARE_FILES = 256  # database, Redis, libraries
FILES_PER_CONNECTION = 2  # the client's, and the replica's for it
MOST_FILES = 65_536


class Doorkeeper:
    """How many connections each address has; one for a process."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.crowd = Crowd()

    def is_crowded(self, address: str) -> bool:
        return self._over(address) > 0

    def has_room(self, address: str) -> bool:
        """Whether there are files left, and this address did not pile up more than it can be told about."""
        return self.crowd.total <= most_connections() and self._over(address) <= CROWDED_MORE

    def _over(self, address: str) -> int:
        """A named proxy is many clients: their requests are counted instead of its connections."""
        count = self.crowd.count(address) - self.limits.connections_per_address
        return 0 if count > 0 and is_within(address, self.limits.proxies) else count


def most_connections() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(1, (soft - SPARE_FILES) // FILES_PER_CONNECTION)


def raise_file_limit() -> None:
    """Many systems allow a process 1,024 open files until it asks for more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Connection(wire.Connection):
    """uvicorn's connection (`--http serving.gateway.doorway:Connection`) with deadlines for head and body."""

    keeper = Doorkeeper(from_environment())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        self.deadline: asyncio.TimerHandle | None = None
        self.is_in_head = True
        self.head_bytes = 0
        self.keeper.crowd.enter(self.address)
        if self.keeper.has_room(self.address):
            self._expect_head()
        else:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_clock()
        self.keeper.crowd.leave(self.address)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.is_in_head:
            self.head_bytes += len(data)
            if self.head_bytes > HEAD_SLACK * self.keeper.limits.header_bytes:
                self._refuse(ApiError(431, "headers_too_large", "the headers of this request have no end"))
        elif self.deadline is None and self.cycle.response_complete:
            # An empty line before a request ends uvicorn's wait for the next one and begins nothing.
            self._expect_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self.keeper.is_crowded(self.address):
            self.scope["extensions"][CROWDED] = {}
        self._expect_head()

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self.is_in_head = False
        self._start_clock(self.keeper.limits.body_seconds + BODY_GRACE_SECONDS)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._stop_clock()

    def _should_upgrade_to_ws(self) -> bool:
        return False

    def _expect_head(self) -> None:
        self.is_in_head, self.head_bytes = True, 0
        self._start_clock(self.keeper.limits.header_seconds)

    def _start_clock(self, seconds: float) -> None:
        self._stop_clock()
        self.deadline = self.loop.call_later(seconds, self._expire)

    def _stop_clock(self) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None

    def _expire(self) -> None:
        if not self.is_in_head:
            self.transport.close()
            return
        seconds = self.keeper.limits.header_seconds
        self._refuse(ApiError(408, "headers_timeout", f"the headers did not arrive within {seconds:g} s"))

    def _refuse(self, error: ApiError) -> None:
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete:
            content = compact(error.body)
            head = (
                f"HTTP/1.1 {error.status} Refused\r\ncontent-type: application/json\r\nconnection: close\r\n"
            )
            self.transport.write(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
        self.transport.close()

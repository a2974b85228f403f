"""Connections kept open between looks at the same hosts: logging in costs more than a look.

Every process that looks has connections of its own, in an event loop of its own. One is closed when it was not used for
a minute, when its device was changed or removed, and after some minutes, so that a changed host key is found.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from inventory.models import Device
from inventory.remote.connection import Connection
from inventory.remote.errors import RemoteError
from inventory.remote.local import LocalConnection
from inventory.remote.ssh import Target, log_in_to, target_of

IDLE_SECONDS = 60.0
OLDEST_SECONDS = 300.0
MOST = 64  # kept at once; a host beyond them is logged in to at each look
ALIVE_SECONDS = 5.0  # a connection that breaks in silence is noticed before it is relied on

Result = TypeVar("Result")
Way = Target | RemoteError | None  # None: this machine


@dataclass(frozen=True)
class Question(Generic[Result]):
    """What to do on a device, and how long all of it may take, the log-in included."""

    device: Device
    work: Callable[[Connection], Awaitable[Result]]
    limit_seconds: float


def ask(questions: Sequence[Question[Result]]) -> list[Result | RemoteError]:
    """Ask all devices at once, over connections that stay open; a device that does not answer gives its error."""
    return keeper().ask(questions)


@dataclass
class Kept:
    target: Target
    connection: Connection
    stack: AsyncExitStack
    opened_at: float
    used_at: float

    def is_too_old(self) -> bool:
        return time.monotonic() - self.opened_at > OLDEST_SECONDS

    async def is_alive(self) -> bool:
        try:
            return (await self.connection.run(["true"], timeout_seconds=ALIVE_SECONDS)).succeeded
        except RemoteError:
            return False


@dataclass
class Keeper:
    """The connections of this process by device id; only its own loop touches them."""

    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    kept: dict[int, Kept] = field(default_factory=dict)
    locks: dict[int, asyncio.Lock] = field(default_factory=dict)
    closing: set[asyncio.Task[None]] = field(default_factory=set)

    def start(self) -> None:
        threading.Thread(target=self.loop.run_forever, name="kept-connections", daemon=True).start()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def ask(self, questions: Sequence[Question[Result]]) -> list[Result | RemoteError]:
        """The database is read here, in the caller's thread."""
        ways = [way_to(question.device) for question in questions]
        known = Device.objects.filter(pk__in=list(self.kept)).select_related("identity")
        current = {device.pk: way_to(device) for device in known} if self.kept else {}
        return self.run(self._ask(questions, ways, current))

    async def _ask(
        self, questions: Sequence[Question[Any]], ways: Sequence[Way], current: dict[int, Way]
    ) -> list[Any]:
        for pk, kept in list(self.kept.items()):
            if pk not in current or current[pk] != kept.target:
                self.drop(pk)
        answers = [self._answer(question, way) for question, way in zip(questions, ways, strict=True)]
        return await asyncio.gather(*answers)

    async def _answer(self, question: Question[Any], way: Way) -> Any:
        device, limit_seconds = question.device, question.limit_seconds
        if isinstance(way, RemoteError):
            return way
        try:
            async with asyncio.timeout(limit_seconds):
                if way is None:
                    return await question.work(LocalConnection(device.name))
                async with self.locks.setdefault(device.pk, asyncio.Lock()):
                    return await question.work(await self._connection(device.pk, way))
        except RemoteError as error:
            return error
        except TimeoutError:
            self.drop(device.pk)
            return RemoteError(f"{device} did not answer within {limit_seconds:.0f} s.")
        finally:
            self._rest(device.pk)

    async def _connection(self, pk: int, target: Target) -> Connection:
        """The kept connection when it is still good, else a new one."""
        kept = self.kept.get(pk)
        if kept is not None and (kept.target != target or kept.is_too_old() or not await kept.is_alive()):
            self.drop(pk)
            kept = None
        if kept is None:
            stack = AsyncExitStack()
            connection = await stack.enter_async_context(log_in_to(target))
            now = time.monotonic()
            kept = self.kept[pk] = Kept(target, connection, stack, now, now)
        kept.used_at = time.monotonic()
        return kept.connection

    def _rest(self, pk: int) -> None:
        """After a use: keep it for the next one, within the limits."""
        kept = self.kept.get(pk)
        if kept is None:
            return
        kept.used_at = time.monotonic()
        if len(self.kept) > MOST:
            self.drop(pk)
        else:
            self.loop.call_later(IDLE_SECONDS, self._expire, pk)

    def _expire(self, pk: int) -> None:
        kept = self.kept.get(pk)
        if kept is not None and time.monotonic() - kept.used_at >= IDLE_SECONDS:
            self.drop(pk)

    def drop(self, pk: int) -> None:
        kept = self.kept.pop(pk, None)
        if kept is not None:
            task = self.loop.create_task(kept.stack.aclose())
            self.closing.add(task)
            task.add_done_callback(self.closing.discard)


def way_to(device: Device) -> Way:
    if device.connection == Device.Connections.LOCAL:
        return None
    try:
        return target_of(device)
    except RemoteError as error:
        return error


lock = threading.Lock()
keepers: list[Keeper] = []  # at most one


def keeper() -> Keeper:
    with lock:
        if not keepers:
            keepers.append(Keeper())
            keepers[0].start()
        return keepers[0]


os.register_at_fork(after_in_child=keepers.clear)  # sockets that two processes use are of no use to either

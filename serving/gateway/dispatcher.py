"""Waits where the balancer only counts: requests sleep here until a slot is bound to them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from serving.core.balancer import NOTHING_HELD, Balancer, Held, Lease, NoReplica, Phase, Ticket
from serving.gateway.errors import ApiError

Clock = Callable[[], float]
ProbeIdle = Callable[[int, int], Awaitable[bool]]

PROBE_PAUSE_SECONDS = 0.25
TAKEN_DOWN = "the deployment is being stopped or restarted; this request waited and was not answered"
TAKEN_DOWN_RETRY_SECONDS = 5.0


class Dispatcher:
    """The queue of one deployment for coroutines."""

    def __init__(self, balancer: Balancer, clock: Clock, queue_seconds: float) -> None:
        self.balancer = balancer
        self.clock = clock
        self.queue_seconds = queue_seconds
        self._sleepers: dict[Ticket, asyncio.Future[Lease]] = {}
        self._probes: set[asyncio.Task[None]] = set()

    async def lease(self, ticket: Ticket) -> Lease:
        """Sleep until a slot is bound to a ticket that was admitted or has rejoined."""
        sleeper: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        self._sleepers[ticket] = sleeper
        try:
            self.pump()
            if sleeper.done():
                return sleeper.result()
            async with asyncio.timeout(self.queue_seconds):
                return await sleeper
        except TimeoutError:
            self._give_back(sleeper)
            raise ApiError(
                503,
                "queue_timeout",
                f"no slot became free within {self.queue_seconds:g} s",
                retry_after_seconds=self.balancer.retry_after_seconds(),
            ) from None
        except asyncio.CancelledError:
            self._give_back(sleeper)
            raise
        finally:
            self._sleepers.pop(ticket, None)

    def rejoin(self, ticket: Ticket, phase: Phase) -> None:
        self.balancer.rejoin(ticket, phase, self.clock())

    def release(self, lease: Lease, holds: Held = NOTHING_HELD) -> None:
        self.balancer.release(lease, self.clock(), holds)
        self.pump()

    def leave(self, ticket: Ticket) -> None:
        self.balancer.leave(ticket)

    def abandon(self, lease: Lease, unconfirmed_seconds: float, is_idle: ProbeIdle) -> None:
        """Give up a slot that its server may still be busy with; it is free once the server says so."""
        now = self.clock()
        self.balancer.abandon(lease, now, now + unconfirmed_seconds)
        probe = asyncio.create_task(self._confirm(lease, now + unconfirmed_seconds, is_idle))
        self._probes.add(probe)
        probe.add_done_callback(self._probes.discard)

    def pump(self) -> None:
        """Bind what can be bound now; called after every change and now and then, since time changes things too."""
        for lease in self.balancer.bind(self.clock()):
            sleeper = self._sleepers.get(lease.ticket)
            if sleeper is None or sleeper.done():
                self.balancer.release(lease, self.clock())
            else:
                sleeper.set_result(lease)
        if all(backend.draining for backend in self.balancer.backends.values()):
            self._fail_all()

    def _fail_all(self) -> None:
        for ticket, sleeper in list(self._sleepers.items()):
            if not sleeper.done():
                self.balancer.leave(ticket)
                sleeper.set_exception(NoReplica(TAKEN_DOWN, TAKEN_DOWN_RETRY_SECONDS))

    def _give_back(self, sleeper: asyncio.Future[Lease]) -> None:
        if sleeper.done() and not sleeper.cancelled() and sleeper.exception() is None:
            self.release(sleeper.result())

    async def _confirm(self, lease: Lease, until: float, is_idle: ProbeIdle) -> None:
        while self.clock() < until:
            await asyncio.sleep(PROBE_PAUSE_SECONDS)
            if await is_idle(lease.replica, lease.slot):
                break
        self.balancer.confirm_idle(lease.replica, lease.slot)
        self.pump()

"""What the gateway does besides requests: reads keys and routes again, keeps time, writes rows, tells live pages."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import redis
from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import Error as DatabaseFault
from django.db import close_old_connections
from redis import asyncio as redis_asyncio

from accounts.vault import VaultError
from serving import events
from serving.gateway.gateway import Gateway
from serving.gateway.keys import Keyring
from serving.gateway.lease import Lease
from serving.gateway.routes import Wanted, load_absent, load_wanted
from serving.gateway.samples import Recorder, request_ended
from serving.gateway.transfer import Transfer
from serving.models import Retention

log = logging.getLogger(__name__)

PUMP_SECONDS = 0.25
TICK_SECONDS = 1.0
RELOAD_SECONDS = 1.0  # a push that was lost delays a revoked key by no more than this
RECONNECT_SECONDS = 1.0
SWEEP_SECONDS = 300.0


class Upkeep:
    """The gateway's background loops."""

    def __init__(
        self, gateway: Gateway, keyring: Keyring, recorder: Recorder, transfer: Transfer, lease: Lease
    ) -> None:
        self.gateway = gateway
        self.keyring = keyring
        self.recorder = recorder
        self.transfer = transfer
        self.lease = lease
        gateway.suspect = self.suspect
        self._pushed = asyncio.Event()
        self._opened: set[int] = set()
        self._loops: list[asyncio.Task[None]] = []
        self._errands: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        await self.reload()
        loops: list[Coroutine[Any, Any, None]] = [
            self._reload_loop(),
            self._listen_loop(),
            repeat(PUMP_SECONDS, self._pump),
            repeat(TICK_SECONDS, self._tick),
            repeat(SWEEP_SECONDS, self._sweep),
        ]
        self._loops = [asyncio.create_task(loop) for loop in loops]
        for task in self._loops:
            task.add_done_callback(end_on_fault)

    async def stop(self) -> None:
        tasks = [*self._loops, *self._errands]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.recorder.flush()
        await self.transfer.close()
        await self._give_back()

    async def _give_back(self) -> None:
        try:
            await sync_to_async(self.lease.release)()
        except DatabaseFault as error:
            log.warning("the lease of this gateway ends by itself in some seconds: %s", error)

    async def reload(self) -> None:
        """Keys, routes and what may be kept, as the database has them now."""
        wanted, self.gateway.routes.absent = await sync_to_async(self._read)()
        self.gateway.routes.apply(wanted)
        for endpoint in (endpoint for one in wanted if one.handover for endpoint in one.endpoints):
            if endpoint.device is not None and endpoint.device not in self._opened:
                self._opened.add(endpoint.device)
                self._errand(self.transfer.open(endpoint.device))

    def _read(self) -> tuple[list[Wanted], frozenset[str]]:
        close_old_connections()
        self.lease.keep()
        self.keyring.note_uses()
        self.gateway.usage.write()
        self.keyring.load()
        self.gateway.keeps_prompts = Retention.current().keeps_prompts
        return load_wanted(), load_absent()

    async def _reload_loop(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RELOAD_SECONDS):
                    await self._pushed.wait()
            self._pushed.clear()
            try:
                await self.reload()
            except (DatabaseFault, VaultError) as error:
                log.warning("keys and routes stay as they were: %s", error)

    async def _listen_loop(self) -> None:
        while True:
            try:
                await self._listen()
            except (redis.RedisError, OSError) as error:
                log.warning("no pushes from Redis: %s", error)
                await asyncio.sleep(RECONNECT_SECONDS)

    async def _listen(self) -> None:
        async with redis_asyncio.Redis.from_url(settings.REDIS_URL) as client, client.pubsub() as channel:
            await channel.subscribe(events.ROUTES_CHANNEL)
            while True:
                if await channel.get_message(ignore_subscribe_messages=True, timeout=None):
                    self._pushed.set()

    async def _pump(self) -> None:
        self.gateway.pump()
        self.gateway.drop_slow_readers()

    async def _tick(self) -> None:
        if self.gateway.refusal():
            return  # the figures of the gateway that serves are the site's
        sent, self.gateway.output_tokens = self.gateway.output_tokens, 0
        await events.publish(self.recorder.tick(self.gateway.routes, sent))
        await events.publish(*map(request_ended, await self.recorder.flush()))

    async def _sweep(self) -> None:
        if self.gateway.refusal():
            return
        for route in list(self.gateway.routes.by_deployment.values()):
            for endpoint in list(route.endpoints.values()):
                if endpoint.saves_slots and endpoint.replica in route.balancer.backends:
                    await self.transfer.sweep(endpoint)

    def suspect(self, replica: int, reason: str) -> None:
        """Tell whoever watches the processes; they may have to restart the replica."""
        log.warning("replica %d failed a request: %s", replica, reason)
        self._errand(events.publish({"type": "replica.suspect", "replica": replica, "reason": reason}))
        self._errand(events.note_suspect(replica, reason))

    def _errand(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)


def end_on_fault(task: asyncio.Task[None]) -> None:
    """A loop that ended would leave a gateway that looks alive and is not: better to be started again."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.critical("the gateway ends because a loop of it failed", exc_info=error)
        os.kill(os.getpid(), signal.SIGTERM)


async def repeat(seconds: float, work: Callable[[], Awaitable[None]]) -> None:
    while True:
        await asyncio.sleep(seconds)
        await work()

"""The gateway's own state: what every request shares. One process has one."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable
from random import Random
from typing import Protocol

from serving.core.crowd import Crowd
from serving.core.rates import TokenRates
from serving.core.retries import PoisonList, RetryBudget
from serving.gateway.capabilities import Capabilities
from serving.gateway.handing import Mover
from serving.gateway.http import Client
from serving.gateway.keys import Caller
from serving.gateway.limits import Limits
from serving.gateway.metrics import Metrics
from serving.gateway.repeats import Repeats
from serving.gateway.routes import Routes
from serving.gateway.timeline import Timeline
from serving.gateway.usage import KeyUsage


class Keys(Protocol):
    """Tells who calls."""

    def caller(self, authorization: str) -> Caller: ...


class Record(Protocol):
    """Takes the timelines of requests that have ended."""

    def add(self, timeline: Timeline) -> None: ...


log = logging.getLogger(__name__)

Suspect = Callable[[int, str], None]


def log_suspect(replica: int, reason: str) -> None:
    log.warning("replica %d failed a request: %s", replica, reason)


def settle_memory() -> None:
    """Leave what the start has loaded out of every later collection: walking it is a tenth of a request's cost."""
    gc.collect()
    gc.freeze()


class Gateway:
    """Keys, routes, queues and counts in memory; nothing here waits for a database."""

    def __init__(self, limits: Limits, keys: Keys, mover: Mover, recorder: Record) -> None:
        self.limits = limits
        self.clock = time.monotonic
        self.keys = keys
        self.mover = mover
        self.recorder = recorder
        self.suspect: Suspect = log_suspect
        self.routes = Routes(limits, Random(), self.clock)
        self.retries = RetryBudget()
        self.poison = PoisonList(limits.poison_crashes, limits.poison_seconds)
        self.repeats = Repeats()
        self.metrics = Metrics()
        self.capabilities = Capabilities()
        self.rates = TokenRates()
        self.usage = KeyUsage()
        self.callers = Crowd()  # requests of each key
        self.visitors = Crowd()  # requests of each address behind a proxy
        self.refusal: Callable[[], str] = lambda: ""  # why another gateway has to be asked
        self.output_tokens = 0
        self.arriving = 0  # requests that wait for a deployment to start
        self.is_draining = False
        self.keeps_prompts = False
        self.clients: set[Client] = set()

    def ended(self, timeline: Timeline) -> None:
        timeline.ended = self.clock()
        self.metrics.observe(timeline)
        self.recorder.add(timeline)

    def pump(self) -> None:
        """Time alone ends ejections and slow starts, and frees slots that nobody confirmed."""
        for route in self.routes.by_deployment.values():
            route.dispatcher.pump()

    def drop_slow_readers(self) -> None:
        now = self.clock()
        for client in list(self.clients):
            if client.is_stuck(now, self.limits):
                client.drop("the client did not read for a minute")

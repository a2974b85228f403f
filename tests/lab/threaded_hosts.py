"""The demo's SSH hosts, kept running in a thread while a test works."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager

from demo import hosts
from demo.hosts import DemoHost
from demo.packages import PartMissing


@contextmanager
def serving(lab: Sequence[DemoHost]) -> Iterator[None]:
    """All hosts answer while this lasts."""
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    ready = threading.Event()
    faults: list[Exception] = []

    async def work() -> None:
        async with AsyncExitStack() as stack:
            for host in lab:
                await stack.enter_async_context(hosts.serving(host))
            ready.set()
            await stop.wait()

    def run() -> None:
        try:
            loop.run_until_complete(work())
        except (OSError, PartMissing) as error:
            faults.append(error)
            ready.set()
        finally:
            loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    ready.wait(30)
    if faults:
        raise faults[0]
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)

"""The hosts of one deployment while something is done to them: one connection each, and the checklist."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, ParamSpec, TypeVar

from asgiref.sync import sync_to_async

from inventory.models import Device
from inventory.remote import Connection, RemoteError, connect
from jobs.progress import Progress
from serving.models import ManagedProcess, Replica
from serving.processes.observe import HostState

Given = ParamSpec("Given")
Result = TypeVar("Result")


class Loaded(NamedTuple):
    """How far the weights of one replica are."""

    held_bytes: int
    total_bytes: int
    remaining_seconds: float | None
    is_seen: bool  # whether the hosts can tell


@dataclass
class Fleet:
    """Connections and facts by device id; devices that did not answer are in `silent` with the reason."""

    progress: Progress
    connections: dict[int, Connection] = field(default_factory=dict)
    states: dict[int, HostState] = field(default_factory=dict)
    silent: dict[int, RemoteError] = field(default_factory=dict)
    freed_bytes: dict[int, int] = field(default_factory=dict)  # by device id: what would be free after a stop
    loaded: dict[int, Loaded] = field(default_factory=dict)  # by replica id

    def connection(self, device: Device) -> Connection:
        if device.pk in self.silent:
            raise self.silent[device.pk]
        return self.connections[device.pk]


@asynccontextmanager
async def reach(devices: Iterable[Device], progress: Progress) -> AsyncIterator[Fleet]:
    """Connect to all devices at once; one that does not answer is no error until it is needed."""
    fleet = Fleet(progress)
    async with AsyncExitStack() as stack:

        async def enter(device: Device) -> None:
            try:
                fleet.connections[device.pk] = await stack.enter_async_context(connect(device))
            except RemoteError as error:
                fleet.silent[device.pk] = error

        await asyncio.gather(
            *(enter(device) for device in {device.pk: device for device in devices}.values())
        )
        yield fleet


async def together(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all; the first error ends the others and is raised as itself."""
    try:
        async with asyncio.TaskGroup() as group:
            for coroutine in work:
                group.create_task(coroutine)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None


async def run_in_database(
    function: Callable[Given, Result], *args: Given.args, **kwargs: Given.kwargs
) -> Result:
    """Call something that uses the database from inside the event loop."""
    return await sync_to_async(function)(*args, **kwargs)


def short_label(replica: Replica) -> str:
    """Such as D2: the replica's role letter and number."""
    return f"{replica.role[0].upper()}{replica.index + 1}"


def process_key(replica: Replica, process: ManagedProcess) -> str:
    return f"{replica.index}:{process.device_id}:{process.kind}"


def load_key(replica: Replica) -> str:
    return f"{replica.index}:load"


def check_key(replica: Replica) -> str:
    return f"{replica.index}:check"

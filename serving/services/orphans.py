"""Processes with our mark that no deployment knows: listed, and stopped only when a person says so."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass

from accounts.models import User
from accounts.services import audit
from inventory.models import Device
from inventory.remote import RemoteError, connect
from serving import from_inventory
from serving.models import ManagedProcess
from serving.processes import lifecycle, observe
from serving.processes.observe import Observation, Seen

LOOK_SECONDS = 12.0
MARKER = re.compile(r"e2llm-[0-9a-f]{12}")
ENDED = (ManagedProcess.States.EXITED, ManagedProcess.States.STOPPED)


class NotAnOrphan(Exception):
    """The process is managed, or is not one of ours."""


@dataclass(frozen=True)
class Orphan:
    device: Device
    process: Seen


@dataclass(frozen=True)
class Search:
    """What was found, and the devices that could not be looked at."""

    orphans: list[Orphan]
    silent: list[Device]


async def find(devices: Sequence[Device], managed: frozenset[str]) -> Search:
    """Look at all devices at once. Devices that are one machine show the same process: it is listed once."""

    async def look(device: Device) -> Observation | None:
        try:
            async with asyncio.timeout(LOOK_SECONDS), connect(device) as connection:
                return await observe.observe(connection)
        except (RemoteError, TimeoutError):
            return None

    looks = await asyncio.gather(*(look(device) for device in devices))
    found: dict[tuple[str, int], Orphan] = {}
    for device, seen in zip(devices, looks, strict=True):
        for process in seen.processes if seen else ():
            if seen is not None and process.marker not in managed:
                found.setdefault((seen.boot_id, process.pid), Orphan(device, process))
    silent = [device for device, seen in zip(devices, looks, strict=True) if seen is None]
    return Search(list(found.values()), silent)


def reachable_devices() -> list[Device]:
    return list(Device.objects.filter(probed_at__isnull=False).select_related("identity"))


def managed_markers() -> frozenset[str]:
    return frozenset(ManagedProcess.objects.exclude(state__in=ENDED).values_list("marker", flat=True))


def check(marker: str) -> None:
    """Refuse what a deployment manages, and what does not look like a marker of ours."""
    if not MARKER.fullmatch(marker):
        raise NotAnOrphan(f"{marker!r} is not a mark of ours.")
    if marker in managed_markers():
        raise NotAnOrphan("A deployment manages this process: stop it on the deployment's page.")


async def stop(device: Device, marker: str) -> None:
    """End every process with this mark on the device and remove its folders."""
    async with connect(device) as connection:
        state = await observe.host_state(connection)
        folders = (
            from_inventory.run_folder(state.home, marker),
            from_inventory.slot_folder(state.home, marker, has_shared_memory=state.has_shared_memory),
        )
        await lifecycle.stop(connection, marker, *folders)


def note_stopped(device: Device, marker: str, user: User) -> None:
    audit(user, "process.stopped", device, {"marker": marker})

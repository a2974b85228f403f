"""Processes with a mark like ours that no deployment knows: listed, and our own stopped when a person says so."""

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
from serving.processes import lifecycle, observe, whose
from serving.processes.observe import Observation, Seen

LOOK_SECONDS = 12.0
MARKER = re.compile(r"e2llm-[0-9a-f]{12}")
ENDED = (ManagedProcess.States.EXITED, ManagedProcess.States.STOPPED)


class NotAnOrphan(Exception):
    """The process is managed, or was not started by this installation."""


@dataclass(frozen=True)
class Known:
    """What the database says about markers."""

    managed: frozenset[str]
    devices: dict[str, int | None]  # marker of every process ever started -> its device

    def is_ours(self, process: Seen) -> bool:
        """Processes of before installations had names are known by their rows."""
        return process.installation == whose.installation_id() or process.marker in self.devices


@dataclass(frozen=True)
class Orphan:
    """`devices` are several where these are one machine and nothing tells which of them it was started for."""

    devices: tuple[Device, ...]
    process: Seen
    is_ours: bool

    @property
    def where(self) -> str:
        return " or ".join(map(str, self.devices))


@dataclass(frozen=True)
class Search:
    """What was found, and the devices that could not be looked at."""

    orphans: list[Orphan]
    silent: list[Device]

    @property
    def ours(self) -> list[Orphan]:
        return [orphan for orphan in self.orphans if orphan.is_ours]

    @property
    def foreign(self) -> list[Orphan]:
        return [orphan for orphan in self.orphans if not orphan.is_ours]


async def find(devices: Sequence[Device], known: Known) -> Search:
    """Look at all devices at once. Devices that are one machine show the same process: it is listed once."""

    async def look(device: Device) -> Observation | None:
        try:
            async with asyncio.timeout(LOOK_SECONDS), connect(device) as connection:
                return await observe.observe(connection)
        except (RemoteError, TimeoutError):
            return None

    looks = await asyncio.gather(*(look(device) for device in devices))
    found: dict[tuple[str, int], tuple[Seen, list[Device]]] = {}
    for device, seen in zip(devices, looks, strict=True):
        for process in seen.processes if seen else ():
            if seen is not None and process.marker not in known.managed:
                found.setdefault((seen.boot_id, process.pid), (process, []))[1].append(device)
    silent = [device for device, seen in zip(devices, looks, strict=True) if seen is None]
    orphans = [
        Orphan(home_of(process, seen_by, known), process, known.is_ours(process))
        for process, seen_by in found.values()
    ]
    return Search(orphans, silent)


def home_of(process: Seen, seen_by: Sequence[Device], known: Known) -> tuple[Device, ...]:
    """The device that a process was started for, by its row or by the address in its command line."""
    by_row = [device for device in seen_by if device.pk == known.devices.get(process.marker)]
    words = process.command.split()
    by_address = [device for device in seen_by if device.address in words]
    return tuple(by_row or by_address or seen_by)


def reachable_devices() -> list[Device]:
    return list(Device.objects.filter(probed_at__isnull=False).select_related("identity"))


def known() -> Known:
    rows = ManagedProcess.objects.all()
    managed = rows.exclude(state__in=ENDED).values_list("marker", flat=True)
    return Known(frozenset(managed), dict(rows.values_list("marker", "device_id")))


def check(search: Search, marker: str) -> None:
    """Refuse what a deployment manages, what another installation started, and what does not run."""
    if not MARKER.fullmatch(marker):
        raise NotAnOrphan(f"{marker!r} is not a mark of ours.")
    if marker in known().managed:
        raise NotAnOrphan("A deployment manages this process: stop it on the deployment's page.")
    if marker in {orphan.process.marker for orphan in search.foreign}:
        raise NotAnOrphan("Another dashboard started this process: stop it there.")
    if marker not in {orphan.process.marker for orphan in search.ours}:
        raise NotAnOrphan("No process with this mark runs there any more. Look again.")


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

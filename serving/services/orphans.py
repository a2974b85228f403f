"""Processes with a mark like ours that no deployment knows: listed, and our own stopped when a person says so.

What may become of one beside that: serving.services.adoption.
"""

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
from serving.processes.observe import Identity, Observation, Seen

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
    boot_id: str = ""
    identity: Identity | None = None

    @property
    def where(self) -> str:
        return " or ".join(map(str, self.devices))


@dataclass(frozen=True)
class Search:
    """What was found, and the devices that could not be looked at."""

    orphans: list[Orphan]
    silent: list[Device]


@dataclass(frozen=True)
class Sight:
    """What one device shows: its processes, and what those are that nobody manages, by process number."""

    seen: Observation
    identities: dict[int, Identity]


async def find(devices: Sequence[Device], known: Known) -> Search:
    """Look at all devices at once. Devices that are one machine show the same process: it is listed once."""
    sights = await asyncio.gather(*(look(device, known) for device in devices))
    found: dict[tuple[str, int], tuple[Seen, list[tuple[Device, Sight]]]] = {}
    for device, sight in zip(devices, sights, strict=True):
        for process in sight.seen.processes if sight else ():
            if sight is not None and process.marker not in known.managed:
                key = (sight.seen.boot_id, process.pid)
                found.setdefault(key, (process, []))[1].append((device, sight))
    silent = [device for device, sight in zip(devices, sights, strict=True) if sight is None]
    return Search([orphan(process, seen_by, known) for process, seen_by in found.values()], silent)


async def look(device: Device, known: Known) -> Sight | None:
    """None of a device that does not answer."""
    programs = [path for key in ("server_path", "rpc_server_path") if (path := device.llama.get(key))]
    try:
        async with asyncio.timeout(LOOK_SECONDS), connect(device) as connection:
            seen = await observe.observe(connection)
            unknown = [process.pid for process in seen.processes if process.marker not in known.managed]
            identities = {pid: await observe.identity(connection, pid, programs) for pid in unknown}
            return Sight(seen, identities)
    except (RemoteError, TimeoutError):
        return None


def orphan(process: Seen, seen_by: Sequence[tuple[Device, Sight]], known: Known) -> Orphan:
    devices = home_of(process, [device for device, _ in seen_by], known)
    sight = next(sight for device, sight in seen_by if device == devices[0])
    identity = sight.identities.get(process.pid)
    return Orphan(devices, process, known.is_ours(process), sight.seen.boot_id, identity)


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
    # A device that was removed and added again is another one: nobody manages what runs there any more.
    managed = rows.exclude(state__in=ENDED).exclude(device=None).values_list("marker", flat=True)
    return Known(frozenset(managed), dict(rows.values_list("marker", "device_id")))


def with_marker(search: Search, marker: str) -> Orphan:
    """Refuses what a deployment manages, and what does not run."""
    if not MARKER.fullmatch(marker):
        raise NotAnOrphan(f"{marker!r} is not a mark of ours.")
    if marker in known().managed:
        raise NotAnOrphan("A deployment manages this process: stop it on the deployment's page.")
    for orphan in search.orphans:
        if orphan.process.marker == marker:
            return orphan
    raise NotAnOrphan("No process with this mark runs there any more. Look again.")


def check(search: Search, marker: str) -> None:
    """Refuse to stop what another installation started, and what is no orphan."""
    if not with_marker(search, marker).is_ours:
        raise NotAnOrphan("Another dashboard started this process: stop it there.")


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

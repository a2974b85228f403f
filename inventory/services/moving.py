"""Another way to a device that is known: its host key tells that it is the same machine."""

from __future__ import annotations

from copy import copy
from typing import Any

from asgiref.sync import async_to_sync

from accounts.models import User
from inventory.models import Device
from inventory.remote import host_key
from inventory.services.devices import settle
from inventory.services.registration import (
    CannotRegister,
    NewDevice,
    already_text,
    ipv4_of,
    known_as,
    look_up,
    prove,
)

WAY = ("host", "port", "username", "identity", "reached_through")


def move_device(device: Device, way: dict[str, Any], user: User | None) -> set[str]:
    """Save where and as whom a device is reached, after its pinned key and a log-in were seen there.

    `way` has the keys of WAY. Returns the names of what changed; the address for other devices follows a new host.
    CannotRegister when another device is reached like this or another key is shown there, RemoteError when no log-in
    is possible; then nothing has changed.
    """
    if all(getattr(device, name) == way[name] for name in WAY):
        return set()
    new = NewDevice(
        device.name, way["host"], way["port"], way["username"], reached_through=way["reached_through"]
    )
    known = known_as(new)
    if known not in (None, device):
        raise CannotRegister(already_text(new, known))
    moved = copy(device)
    for name in WAY:
        setattr(moved, name, way[name])
    shown, pinned = look_up(moved.host, moved.port, moved.reached_through), host_key(device.host_key)
    if shown.line != pinned.line:
        raise CannotRegister(
            f"{moved.host} port {moved.port} shows the key {shown.fingerprint}; that of {device.name} is "
            f"{pinned.fingerprint}. So it is another machine, or its key was changed. Nothing was saved."
        )
    async_to_sync(prove)(moved, "")
    address = ipv4_of(moved.host) if moved.host != device.host else device.address
    return settle(device, {name: way[name] for name in WAY} | {"address": address or device.address}, user)

"""Runs commands and moves files on a device, over SSH or on this machine: the only package that knows SSH."""

from __future__ import annotations

import getpass
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from inventory.models import Device
from inventory.remote import keys
from inventory.remote.connection import Completed, Connection
from inventory.remote.errors import (
    AuthenticationRefused,
    CommandTimedOut,
    HostKeyChanged,
    HostUnreachable,
    RemoteError,
)
from inventory.remote.keys import HostKey, create_identity, host_key, import_identity
from inventory.remote.local import LocalConnection
from inventory.remote.ssh import log_in, shown_key

__all__ = [
    "AuthenticationRefused",
    "CommandTimedOut",
    "Completed",
    "Connection",
    "HostKey",
    "HostKeyChanged",
    "HostUnreachable",
    "RemoteError",
    "connect",
    "create_identity",
    "fetch_host_key",
    "host_key",
    "import_identity",
]


def name_local_user() -> None:
    """asyncssh asks who runs it; the bare user id of a container has no name, and then it connects to nothing."""
    try:
        getpass.getuser()
    except (KeyError, OSError):
        os.environ["LOGNAME"] = f"uid-{os.getuid()}"


name_local_user()


@asynccontextmanager
async def connect(device: Device, password: str = "") -> AsyncIterator[Connection]:
    """Open the device; a password is used instead of its identity, once, to install our key."""
    if device.connection == Device.Connections.LOCAL:
        yield LocalConnection(device.name)
        return
    async with log_in(device, password) as connection:
        yield connection


async def fetch_host_key(host: str, port: int, through: Device | None = None) -> HostKey:
    """The key a host shows, without logging in; perhaps seen from the device through which it is reached."""
    if through is None:
        return await keys.fetch_host_key(host, port)
    return await shown_key(host, port, through)

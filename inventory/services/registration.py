"""Registering a device: its host key is confirmed first, its password used once, its row made last."""

from __future__ import annotations

import asyncio
import ipaddress
import shlex
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from asgiref.sync import async_to_sync
from django.db import IntegrityError, transaction

from accounts.models import User
from accounts.services import audit
from inventory.models import Device, SshIdentity
from inventory.remote import Connection, HostKey, RemoteError, connect, create_identity, fetch_host_key

USUAL_PORT = 22
DEFAULT_IDENTITY = "e2llm"
LOOK_UP_SECONDS = (
    40.0  # for all of a look-up, the log-ins to jump hosts included: a person waits for the page
)
INSTALL_PROGRAM = r"""
umask 077
mkdir -p "$HOME/.ssh" && cd "$HOME/.ssh" || exit 1
touch authorized_keys
grep -q -s -F -- "$1" authorized_keys && exit 0
[ -z "$(tail -c 1 authorized_keys)" ] || echo >> authorized_keys
printf '%s\n' "$1" >> authorized_keys
"""


class CannotRegister(Exception):
    """The device was not added; the text says why and what to do."""


@dataclass(frozen=True)
class NewDevice:
    """What an admin typed for a device over SSH; `address` is where other devices reach it."""

    name: str
    host: str
    port: int
    username: str
    address: str = ""
    llama_folder: str = ""
    model_roots: tuple[str, ...] = ()
    reached_through: Device | None = None


def default_identity() -> SshIdentity:
    """The key pair that devices get unless an admin chose another; made on first use."""
    found = SshIdentity.objects.filter(name=DEFAULT_IDENTITY).first()
    return found or create_identity(DEFAULT_IDENTITY)


def look_up(host: str, port: int, through: Device | None = None) -> HostKey:
    """The key that a host shows now, to be compared and confirmed by a person."""
    return async_to_sync(_shown)(host, port, through)


async def _shown(host: str, port: int, through: Device | None) -> HostKey:
    try:
        async with asyncio.timeout(LOOK_UP_SECONDS):
            return await fetch_host_key(host, port, through)
    except TimeoutError:
        way = f" through {through.name}" if through else ""
        raise RemoteError(
            f"{host} port {port} showed no key{way} within {LOOK_UP_SECONDS:.0f} s. Is the machine on, "
            "and is the address right?"
        ) from None


def print_command(key: HostKey, host: str, port: int) -> str:
    """What prints the fingerprint of this key when it is run on the machine itself."""
    kind = key.algorithm.removeprefix("ssh-").partition("-")[0]
    if port == USUAL_PORT:
        return f"ssh-keygen -lf /etc/ssh/ssh_host_{kind}_key.pub"
    return f"ssh-keyscan -t {kind} -p {port} {shlex.quote(host)} 2>/dev/null | ssh-keygen -lf -"


def look_up_all(places: Sequence[tuple[str, int]]) -> list[HostKey | RemoteError]:
    """The keys of many hosts at once, each its key or what is wrong."""

    async def one(host: str, port: int) -> HostKey | RemoteError:
        try:
            return await _shown(host, port, None)
        except RemoteError as error:
            return error

    async def all_of_them() -> list[HostKey | RemoteError]:
        return await asyncio.gather(*(one(host, port) for host, port in places))

    return async_to_sync(all_of_them)()


def place_text(host: str, port: int) -> str:
    """Host and port in one word, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def known_as(new: NewDevice) -> Device | None:
    """The registered device that is reached in just the same way."""
    way = {"port": new.port, "username": new.username, "reached_through": new.reached_through}
    return Device.objects.filter(connection=Device.Connections.SSH, host__iexact=new.host, **way).first()


def already_text(new: NewDevice, known: Device) -> str:
    return f"{new.username}@{new.host} port {new.port} is already {known.name}."


def register_device(
    new: NewDevice,
    host_key: str,
    user: User | None,
    *,
    identity: SshIdentity | None = None,
    password: str = "",
) -> Device:
    """Log in, install our key when a password is given, and only then save the device.

    `host_key` is the confirmed line. The password is used for this one log-in and kept nowhere.
    """
    if Device.objects.filter(name=new.name).exists():
        raise CannotRegister(f"There is already a device called {new.name!r}. Choose another name.")
    known = known_as(new)
    if known is not None:
        raise CannotRegister(already_text(new, known))
    device = Device(
        name=new.name,
        host=new.host,
        port=new.port,
        username=new.username,
        identity=identity or default_identity(),
        host_key=host_key,
        address=new.address or ipv4_of(new.host),
        llama_folder=new.llama_folder,
        model_roots=list(new.model_roots),
        reached_through=new.reached_through,
    )
    async_to_sync(prove)(device, password)
    try:
        with transaction.atomic():
            device.save()
            audit(
                user, "device.added", device.name, {"host": new.host, "port": new.port, "user": new.username}
            )
    except IntegrityError:
        raise CannotRegister(f"A device called {new.name!r} was added at the same moment.") from None
    return device


def ipv4_of(host: str) -> str | None:
    """The IPv4 address of a host; None when it has none, which the probe may still find."""
    try:
        return str(ipaddress.IPv4Address(host))
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
    except OSError:
        return None
    return str(found[0][4][0])


async def prove(device: Device, password: str) -> None:
    """Show that our key opens the device, after putting it there when we have a password."""
    assert device.identity is not None, "a device over SSH has an identity"
    if password:
        async with connect(device, password) as connection:
            await _install(connection, device.identity.public_key)
    async with connect(device) as connection:
        done = await connection.run(["/bin/sh", "-c", "exit 0"], timeout_seconds=15.0)
    if not done.succeeded:
        raise RemoteError(f"{device.host} let us in but does not run /bin/sh: {done.stderr.strip()[-200:]}")


async def _install(connection: Connection, public_key: str) -> None:
    done = await connection.script(INSTALL_PROGRAM, [public_key], timeout_seconds=15.0)
    if not done.succeeded:
        reason = done.stderr.strip()[-200:] or f"exit status {done.exit_status}"
        raise RemoteError(
            f"our key could not be added to ~/.ssh/authorized_keys on {connection.name}: {reason}"
        )

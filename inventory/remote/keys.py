"""Host keys and the key pairs with which we log in."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import asyncssh

from inventory.models import SshIdentity
from inventory.remote import errors
from inventory.remote.errors import HostUnreachable, silent_text, unreachable_text


@dataclass(frozen=True)
class HostKey:
    algorithm: str
    fingerprint: str
    line: str


async def fetch_host_key(host: str, port: int, tunnel: asyncssh.SSHClientConnection | None = None) -> HostKey:
    """The key a host shows, without logging in; a person compares its fingerprint."""
    try:
        async with asyncio.timeout(errors.CONNECT_SECONDS):
            key = await asyncssh.get_server_host_key(host, port, tunnel=tunnel or (), config=None)
    except TimeoutError:
        raise HostUnreachable(silent_text(host, port)) from None
    except (OSError, asyncssh.Error) as error:
        raise HostUnreachable(unreachable_text(host, port, error)) from None
    if key is None:
        raise HostUnreachable(f"{host} port {port} did not show a host key. Is it an SSH server?")
    return host_key(key.export_public_key().decode())


def host_key(line: str) -> HostKey:
    """A public key in OpenSSH's one-line format with its fingerprint; ValueError when it is none."""
    try:
        key = asyncssh.import_public_key(line)
    except asyncssh.KeyImportError as error:
        raise ValueError(f"not an OpenSSH public key: {error}") from None
    words = key.export_public_key().decode().split()
    return HostKey(words[0], key.get_fingerprint("sha256"), f"{words[0]} {words[1]}")


def create_identity(name: str) -> SshIdentity:
    """A fresh Ed25519 key pair as a saved identity."""
    key = asyncssh.generate_private_key("ssh-ed25519", comment=f"e2llm {name}")
    return SshIdentity.objects.create(
        name=name,
        public_key=key.export_public_key().decode().strip(),
        private_key=key.export_private_key().decode(),
    )


def import_identity(name: str, private_key: str, passphrase: str = "") -> SshIdentity:
    """Save a key pair that an admin brought; ValueError when the key does not open."""
    try:
        key = asyncssh.import_private_key(private_key, passphrase or None)
    except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError) as error:
        raise ValueError(f"the private key cannot be read: {error}") from None
    return SshIdentity.objects.create(
        name=name,
        public_key=key.export_public_key().decode().strip(),
        private_key=key.export_private_key().decode(),
    )

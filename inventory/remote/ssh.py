"""A device over SSH: pinned host key, no agent, no forwarding of anything, a deadline round every step."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import asyncssh
from asgiref.sync import sync_to_async

from inventory.models import Device
from inventory.remote import errors
from inventory.remote.connection import HOLD_END_SECONDS, Connection, Tell, checked, timeout_text
from inventory.remote.errors import (
    AuthenticationRefused,
    CommandTimedOut,
    HostKeyChanged,
    HostUnreachable,
    RemoteError,
    silent_text,
    unreachable_text,
)
from inventory.remote.keys import HostKey, fetch_host_key, host_key
from inventory.remote.reasons import reason
from inventory.remote.streams import ReportBytes, talk

KEEPALIVE_SECONDS, KEEPALIVE_MISSES = 10, 3
CONNECT_ATTEMPTS = 8
MAX_CHANNELS = 8
KILL_SECONDS = 3.0
MAX_JUMPS = 4

# The empty line ends whatever a start-up file printed without ending its last line.
BEGIN_PROGRAM = 'echo; echo "$0 $$"; exec "$@"'


@dataclass(frozen=True)
class Target:
    """Where and as whom to log in; made from a device before any event loop runs."""

    name: str
    host: str
    port: int
    username: str
    host_key: str
    private_key: str
    through: Target | None = None


class SshConnection(Connection):
    def __init__(self, name: str, client: asyncssh.SSHClientConnection) -> None:
        super().__init__(name)
        self._client = client
        self._channels = asyncio.Semaphore(MAX_CHANNELS)

    async def _execute(
        self,
        argv: Sequence[str],
        stdin: bytes | Path,
        timeout_seconds: float,
        report: ReportBytes | None = None,
    ) -> tuple[int, bytes, bytes]:
        marker = f"e2llm-{secrets.token_hex(8)}"
        command = f"exec {_command_line(['/bin/sh', '-c', BEGIN_PROGRAM, marker, *argv])}"
        process: asyncssh.SSHClientProcess[bytes] | None = None
        out, err = bytearray(), bytearray()
        try:
            async with asyncio.timeout(timeout_seconds), self._channels:
                process = await self._open(command)
                await talk((process.stdin, process.stdout, process.stderr), stdin, (out, err), report)
                await process.wait_closed()
        except TimeoutError:
            raise CommandTimedOut(timeout_text(self.name, argv, timeout_seconds)) from None
        except (asyncssh.Error, OSError) as error:
            raise HostUnreachable(
                f"The connection to {self.name} broke during {argv[0]}: {reason(error)}."
            ) from None
        finally:
            if process is not None:
                await self._end(process, bytes(out), marker)
        if process.exit_status is None:
            raise HostUnreachable(f"The connection to {self.name} broke during {argv[0]}.")
        return process.exit_status, _begun(bytes(out), marker)[1], bytes(err)

    async def _end(self, process: asyncssh.SSHClientProcess[bytes], out: bytes, marker: str) -> None:
        """A given-up command must not go on unseen: sshd ignores signal requests for root, so kill its group."""
        process.close()
        pid, _ = _begun(out, marker)
        if process.exit_status is not None or pid is None or self._client.is_closed():
            return
        with suppress(TimeoutError, asyncssh.Error, OSError):
            async with asyncio.timeout(KILL_SECONDS):
                await self._client.run(f"kill -9 -{pid}")

    async def _open(self, command: str) -> asyncssh.SSHClientProcess[bytes]:
        """Open a channel; a host that allows few at once is waited for, within the caller's deadline."""
        wait = 0.05
        while True:
            try:
                return await self._client.create_process(command, encoding=None)
            except asyncssh.ChannelOpenError:
                if self._client.is_closed():
                    raise
                await asyncio.sleep(wait)
                wait = min(wait * 2, 2.0)

    @asynccontextmanager
    async def hold(self, argv: Sequence[str]) -> AsyncIterator[Tell]:
        try:
            process = await self._open(f"exec {_command_line(argv)}")
        except (asyncssh.Error, OSError) as error:
            raise HostUnreachable(
                f"{argv[0]} on {self.name} could not be started: {reason(error)}."
            ) from None
        ended = asyncio.create_task(process.wait_closed())

        async def tell(line: str) -> None:
            try:
                process.stdin.write(f"{line}\n".encode())
                await process.stdin.drain()
            except (asyncssh.Error, OSError) as error:
                raise HostUnreachable(f"The connection to {self.name} broke: {reason(error)}.") from None

        try:
            yield tell
        finally:
            with suppress(TimeoutError, asyncssh.Error, OSError):
                process.stdin.write_eof()
                async with asyncio.timeout(HOLD_END_SECONDS):
                    await asyncio.wait([ended])
            ended.cancel()
            process.close()

    @asynccontextmanager
    async def tunnel(self, host_port: int) -> AsyncIterator[int]:
        listener = await self._client.forward_local_port("127.0.0.1", 0, "127.0.0.1", host_port)
        try:
            yield listener.get_port()
        finally:
            listener.close()


@asynccontextmanager
async def log_in(device: Device, password: str = "") -> AsyncIterator[Connection]:
    async with log_in_to(await _target(device), password) as connection:
        yield connection


@asynccontextmanager
async def log_in_to(target: Target, password: str = "") -> AsyncIterator[Connection]:
    if not target.host_key:
        raise RemoteError(
            f"The host key of {target.name} has not been confirmed yet, so nothing was sent to it."
        )
    async with _client(target, password) as client:
        yield SshConnection(target.name, client)


async def shown_key(host: str, port: int, through: Device) -> HostKey:
    """The key that a host shows to the device through which it is reached."""
    async with _client(await _target(through), "") as jump:
        return await fetch_host_key(host, port, jump)


@asynccontextmanager
async def _client(target: Target, password: str) -> AsyncIterator[asyncssh.SSHClientConnection]:
    """A logged-in client, over as many jump hosts as it takes; all are closed together."""
    async with AsyncExitStack() as stack:
        jump = await stack.enter_async_context(_client(target.through, "")) if target.through else None
        client = await _log_in(target, password, jump)
        try:
            yield client
        finally:
            client.close()
            with suppress(TimeoutError, asyncssh.Error, OSError):
                async with asyncio.timeout(2.0):
                    await client.wait_closed()


async def _target(device: Device) -> Target:
    field = Device._meta.get_field("identity")
    is_complete = device.identity_id is None or field.is_cached(device)
    if is_complete and device.reached_through_id is None:
        return target_of(device)
    return await sync_to_async(target_of)(device)


def target_of(device: Device, jumps: int = 0) -> Target:
    """Reads the database; equal as long as nothing about the way to the device was changed."""
    if jumps > MAX_JUMPS:
        raise RemoteError(
            f"{device.name} is reached over more than {MAX_JUMPS} jump hosts: does the chain close?"
        )
    private_key = device.identity.private_key if device.identity else ""
    through = target_of(device.reached_through, jumps + 1) if device.reached_through else None
    return Target(
        device.name, device.host, device.port, device.username, device.host_key, private_key, through
    )


async def _log_in(
    target: Target, password: str, jump: asyncssh.SSHClientConnection | None
) -> asyncssh.SSHClientConnection:
    try:
        async with asyncio.timeout(errors.CONNECT_SECONDS * 2):
            return await _attempts(target, password, jump)
    except asyncssh.PermissionDenied:
        raise AuthenticationRefused(_refused_text(target, password)) from None
    except (asyncssh.HostKeyNotVerifiable, asyncssh.KeyExchangeFailed):
        pass
    except TimeoutError:
        raise HostUnreachable(silent_text(target.host, target.port)) from None
    except (OSError, asyncssh.Error) as error:
        raise HostUnreachable(unreachable_text(target.host, target.port, error)) from None
    shown = await fetch_host_key(target.host, target.port, jump)
    raise HostKeyChanged(target.name, host_key(target.host_key).fingerprint, shown.fingerprint)


async def _attempts(
    target: Target, password: str, jump: asyncssh.SSHClientConnection | None
) -> asyncssh.SSHClientConnection:
    """A busy sshd drops new connections at random (MaxStartups): try again before giving up."""
    for attempt in range(1, CONNECT_ATTEMPTS + 1):
        try:
            return await _open_client(target, password, jump)
        except (ConnectionResetError, asyncssh.ConnectionLost):
            if attempt == CONNECT_ATTEMPTS:
                raise
            await asyncio.sleep(0.2 * attempt + secrets.randbelow(200) / 1000)
    raise AssertionError("the loop returns or raises")


async def _open_client(
    target: Target, password: str, jump: asyncssh.SSHClientConnection | None
) -> asyncssh.SSHClientConnection:
    keys = None if password or not target.private_key else [asyncssh.import_private_key(target.private_key)]
    return await asyncssh.connect(
        target.host,
        target.port,
        username=target.username,
        password=password or None,
        client_keys=keys,
        known_hosts=asyncssh.import_known_hosts(f"* {target.host_key}\n"),
        tunnel=jump or (),
        config=None,
        agent_path=None,
        agent_forwarding=False,
        x11_forwarding=False,
        gss_host=None,
        connect_timeout=errors.CONNECT_SECONDS,
        login_timeout=errors.CONNECT_SECONDS,
        keepalive_interval=KEEPALIVE_SECONDS,
        keepalive_count_max=KEEPALIVE_MISSES,
    )


def _command_line(argv: Sequence[str]) -> str:
    return " ".join(quoted(checked(word)) for word in argv)


def quoted(word: str) -> str:
    """One word for any login shell: fish, other than POSIX shells, reads backslashes inside single quotes."""
    inside = re.sub(r"[\\']", lambda special: f"'\\{special[0]}'", word)
    return f"'{inside}'"


def _begun(out: bytes, marker: str) -> tuple[int | None, bytes]:
    """Process id and output of our command, without what the login shell's start-up files printed before it."""
    begun = re.search(rb"^" + marker.encode() + rb" (\d+)\n", out, re.MULTILINE)
    return (int(begun[1]), out[begun.end() :]) if begun else (None, out)


def _refused_text(target: Target, password: str) -> str:
    if password:
        return f"{target.host} refused the password of {target.username!r}. Check user and password."
    return (
        f"{target.host} refused our key for the user {target.username!r}. Add the public key of the SSH identity "
        f"to ~{target.username}/.ssh/authorized_keys there, or register the device again with its password."
    )

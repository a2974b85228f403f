"""Runs commands and moves files on a device, over SSH or on this machine: the only file that knows SSH."""

from __future__ import annotations

import asyncio
import os
import secrets
import shlex
import signal
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import asyncssh
from asgiref.sync import sync_to_async

from inventory.models import Device, SshIdentity

CONNECT_SECONDS = 10.0
KEEPALIVE_SECONDS, KEEPALIVE_MISSES = 10, 3
CONNECT_ATTEMPTS = 3
MAX_CHANNELS = 8
CHUNK_BYTES = 256 * 1024
MAX_OUTPUT_BYTES = 64 * 1024 * 1024

WRITE_PROGRAM = 'umask 077; mkdir -p -- "${1%/*}" && cat > "$1.part" && chmod "$2" "$1.part" && mv -f -- "$1.part" "$1"'
READ_PROGRAM = 'head -c "$2" < "$1"'

ReportBytes = Callable[[int, int], None]


class RemoteError(Exception):
    """A device could not be reached or did not do what it was asked; the text is for a person."""


class HostUnreachable(RemoteError):
    pass


class AuthenticationRefused(RemoteError):
    pass


class CommandTimedOut(RemoteError):
    pass


class HostKeyChanged(RemoteError):
    """The host shows another key than the one pinned: never continue."""

    def __init__(self, name: str, old_fingerprint: str, new_fingerprint: str) -> None:
        super().__init__(
            f"{name} shows a different host key than the one confirmed. Confirmed: {old_fingerprint}. "
            f"Shown now: {new_fingerprint}. Nothing was sent to it. If the machine was reinstalled, "
            "confirm the new key on its page; if not, somebody may be standing between."
        )
        self.old_fingerprint = old_fingerprint
        self.new_fingerprint = new_fingerprint


@dataclass(frozen=True)
class HostKey:
    algorithm: str
    fingerprint: str
    line: str


@dataclass(frozen=True)
class Completed:
    exit_status: int
    stdout: str
    stderr: str

    @property
    def succeeded(self) -> bool:
        return self.exit_status == 0


@dataclass(frozen=True)
class Target:
    """Where and as whom to log in; made from a device before any event loop runs."""

    name: str
    host: str
    port: int
    username: str
    host_key: str
    private_key: str


class Connection(ABC):
    """One open way to a device. Data reach a program as arguments or on stdin, never as shell text."""

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    async def _execute(
        self, argv: Sequence[str], stdin: bytes | Path, timeout_seconds: float, report: ReportBytes | None = None
    ) -> tuple[int, bytes, bytes]: ...

    @abstractmethod
    def tunnel(self, host_port: int) -> AbstractAsyncContextManager[int]:
        """A local port that leads to `host_port` on the device's own loopback address."""

    async def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_seconds: float = 30.0) -> Completed:
        status, out, err = await self._execute(argv, stdin, timeout_seconds)
        return Completed(status, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"))

    async def script(self, text: str, args: Sequence[str] = (), *, timeout_seconds: float = 30.0) -> Completed:
        """Run a fixed /bin/sh program with `args` as its $1, $2, ...; it is parsed whole before it runs."""
        given = " ".join(shlex.quote(_checked(arg)) for arg in args)
        program = f"main() {{\n{text}\n}}\nset -- {given}\nmain \"$@\" < /dev/null\n"
        return await self.run(["/bin/sh", "-s"], stdin=program.encode(), timeout_seconds=timeout_seconds)

    async def write_file(
        self,
        path: str,
        source: bytes | Path,
        mode: int = 0o600,
        progress: ReportBytes | None = None,
        *,
        timeout_seconds: float = 3600.0,
    ) -> None:
        """Put a file in place whole or not at all."""
        argv = ["/bin/sh", "-c", WRITE_PROGRAM, "sh", _absolute(path), f"{mode:o}"]
        status, _, err = await self._execute(argv, source, timeout_seconds, progress)
        if status != 0:
            reason = err.decode("utf-8", "replace").strip()[-300:]
            raise RemoteError(f"{path} could not be written on {self.name}: {reason or f'exit status {status}'}")

    async def read_file(self, path: str, max_bytes: int, *, timeout_seconds: float = 120.0) -> bytes:
        """The first `max_bytes` of a file."""
        argv = ["/bin/sh", "-c", READ_PROGRAM, "sh", _absolute(path), str(max_bytes)]
        status, out, err = await self._execute(argv, b"", timeout_seconds)
        if status != 0:
            reason = err.decode("utf-8", "replace").strip()[-300:]
            raise RemoteError(f"{path} could not be read on {self.name}: {reason or f'exit status {status}'}")
        return out

    async def remove(self, paths: Sequence[str]) -> None:
        """Remove files and folders of ours; what is not there is no error."""
        if not paths:
            return
        for path in paths:
            if len(PurePosixPath(_absolute(path)).parts) < 3:
                raise RemoteError(f"{path!r} is too near the root to be removed")
        done = await self.run(["rm", "-rf", "--", *paths], timeout_seconds=60.0)
        if not done.succeeded:
            raise RemoteError(f"files could not be removed on {self.name}: {done.stderr.strip()[-300:]}")


class SshConnection(Connection):
    def __init__(self, name: str, client: asyncssh.SSHClientConnection) -> None:
        super().__init__(name)
        self._client = client
        self._channels = asyncio.Semaphore(MAX_CHANNELS)

    async def _execute(
        self, argv: Sequence[str], stdin: bytes | Path, timeout_seconds: float, report: ReportBytes | None = None
    ) -> tuple[int, bytes, bytes]:
        marker = f"e2llm-{secrets.token_hex(8)}"
        command = f"echo {marker}; exec {_command_line(argv)}"
        process: asyncssh.SSHClientProcess[bytes] | None = None
        try:
            async with asyncio.timeout(timeout_seconds), self._channels:
                process = await self._open(command)
                feed = asyncio.create_task(_feed(process.stdin, stdin, report))
                out, err = await asyncio.gather(_collect(process.stdout), _collect(process.stderr))
                await _settle(feed)
                await process.wait_closed()
        except TimeoutError:
            raise CommandTimedOut(_timeout_text(self.name, argv, timeout_seconds)) from None
        except (asyncssh.Error, OSError) as error:
            raise HostUnreachable(f"The connection to {self.name} broke during {argv[0]}: {error}") from None
        finally:
            if process is not None:
                process.close()
        if process.exit_status is None:
            raise HostUnreachable(f"The connection to {self.name} broke during {argv[0]}.")
        return process.exit_status, _after(out, marker), err

    async def _open(self, command: str) -> asyncssh.SSHClientProcess[bytes]:
        """Open a channel; a host that allows few at once is waited for, within the caller's deadline."""
        wait = 0.05
        while True:
            try:
                return await self._client.create_process(command, encoding=None)
            except asyncssh.ChannelOpenError as error:
                if self._client.is_closed() or error.code == asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED and wait > 5:
                    raise
                await asyncio.sleep(wait)
                wait = min(wait * 2, 10.0)

    @asynccontextmanager
    async def tunnel(self, host_port: int) -> AsyncIterator[int]:
        listener = await self._client.forward_local_port("127.0.0.1", 0, "127.0.0.1", host_port)
        try:
            yield listener.get_port()
        finally:
            listener.close()


class LocalConnection(Connection):
    """The machine that the dashboard runs on."""

    async def _execute(
        self, argv: Sequence[str], stdin: bytes | Path, timeout_seconds: float, report: ReportBytes | None = None
    ) -> tuple[int, bytes, bytes]:
        words = [_checked(word) for word in argv]
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                *words, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True, cwd=Path.home()
            )
        except OSError as error:
            return 127, b"", f"{words[0]}: {error.strerror}".encode()
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None, "piped"
        try:
            async with asyncio.timeout(timeout_seconds):
                feed = asyncio.create_task(_feed(process.stdin, stdin, report))
                out, err = await asyncio.gather(_collect(process.stdout), _collect(process.stderr))
                await _settle(feed)
                status = await process.wait()
        except TimeoutError:
            raise CommandTimedOut(_timeout_text(self.name, argv, timeout_seconds)) from None
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        return status, out, err

    @asynccontextmanager
    async def tunnel(self, host_port: int) -> AsyncIterator[int]:
        yield host_port


async def fetch_host_key(host: str, port: int) -> HostKey:
    """The key a host shows, without logging in; a person compares its fingerprint."""
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            key = await asyncssh.get_server_host_key(host, port, config=None)
    except TimeoutError:
        raise HostUnreachable(_silent_text(host, port)) from None
    except (OSError, asyncssh.Error) as error:
        raise HostUnreachable(_unreachable_text(host, port, error)) from None
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


@asynccontextmanager
async def connect(device: Device, password: str = "") -> AsyncIterator[Connection]:
    """Open the device; a password is used instead of its identity, once, to install our key."""
    if device.connection == Device.Connections.LOCAL:
        yield LocalConnection(device.name)
        return
    target = await _target(device)
    if not target.host_key:
        raise RemoteError(f"The host key of {device.name} has not been confirmed yet, so nothing was sent to it.")
    client = await _log_in(target, password)
    try:
        yield SshConnection(device.name, client)
    finally:
        client.close()
        with suppress(TimeoutError, asyncssh.Error, OSError):
            async with asyncio.timeout(2.0):
                await client.wait_closed()


async def _target(device: Device) -> Target:
    field = Device._meta.get_field("identity")
    if device.identity_id is None or field.is_cached(device):
        return _read_target(device)
    return await sync_to_async(_read_target)(device)


def _read_target(device: Device) -> Target:
    private_key = device.identity.private_key if device.identity else ""
    return Target(device.name, device.host, device.port, device.username, device.host_key, private_key)


async def _log_in(target: Target, password: str) -> asyncssh.SSHClientConnection:
    try:
        async with asyncio.timeout(CONNECT_SECONDS * 2):
            return await _attempts(target, password)
    except asyncssh.PermissionDenied:
        raise AuthenticationRefused(_refused_text(target, password)) from None
    except (asyncssh.HostKeyNotVerifiable, asyncssh.KeyExchangeFailed):
        pass
    except TimeoutError:
        raise HostUnreachable(_silent_text(target.host, target.port)) from None
    except (OSError, asyncssh.Error) as error:
        raise HostUnreachable(_unreachable_text(target.host, target.port, error)) from None
    shown = await fetch_host_key(target.host, target.port)
    raise HostKeyChanged(target.name, host_key(target.host_key).fingerprint, shown.fingerprint)


async def _attempts(target: Target, password: str) -> asyncssh.SSHClientConnection:
    """A busy sshd drops new connections at random (MaxStartups): try again before giving up."""
    for attempt in range(1, CONNECT_ATTEMPTS + 1):
        try:
            return await _open_client(target, password)
        except (ConnectionResetError, asyncssh.ConnectionLost):
            if attempt == CONNECT_ATTEMPTS:
                raise
            await asyncio.sleep(0.2 * attempt + secrets.randbelow(200) / 1000)
    raise AssertionError("the loop returns or raises")


async def _open_client(target: Target, password: str) -> asyncssh.SSHClientConnection:
    keys = None if password or not target.private_key else [asyncssh.import_private_key(target.private_key)]
    return await asyncssh.connect(
        target.host,
        target.port,
        username=target.username,
        password=password or None,
        client_keys=keys,
        known_hosts=asyncssh.import_known_hosts(f"* {target.host_key}\n"),
        config=None,
        agent_path=None,
        agent_forwarding=False,
        x11_forwarding=False,
        gss_host=None,
        connect_timeout=CONNECT_SECONDS,
        login_timeout=CONNECT_SECONDS,
        keepalive_interval=KEEPALIVE_SECONDS,
        keepalive_count_max=KEEPALIVE_MISSES,
    )


def _checked(word: str) -> str:
    if "\0" in word:
        raise RemoteError("a NUL character cannot be part of a command or path")
    return word


def _absolute(path: str) -> str:
    if not _checked(path).startswith("/") or ".." in PurePosixPath(path).parts:
        raise RemoteError(f"{path!r} is not an absolute path without '..'")
    return path


def _command_line(argv: Sequence[str]) -> str:
    return " ".join(shlex.quote(_checked(word)) for word in argv)


async def _feed(sink: object, source: bytes | Path, report: ReportBytes | None) -> None:
    writer: asyncio.StreamWriter = sink  # type: ignore[assignment]
    total = len(source) if isinstance(source, bytes) else source.stat().st_size
    sent = 0
    async for part in _parts(source):
        writer.write(part)
        await writer.drain()
        sent += len(part)
        if report is not None:
            report(sent, total)
    writer.write_eof()


async def _parts(source: bytes | Path) -> AsyncIterator[bytes]:
    if isinstance(source, bytes):
        for start in range(0, len(source), CHUNK_BYTES):
            yield source[start : start + CHUNK_BYTES]
        return
    with source.open("rb") as file:  # noqa: ASYNC230 - a local disk read of 256 KiB
        while part := file.read(CHUNK_BYTES):
            yield part


async def _collect(source: object) -> bytes:
    reader: asyncio.StreamReader = source  # type: ignore[assignment]
    parts, size = [], 0
    while part := await reader.read(CHUNK_BYTES):
        size += len(part)
        if size > MAX_OUTPUT_BYTES:
            raise RemoteError(f"a command printed more than {MAX_OUTPUT_BYTES >> 20} MiB")
        parts.append(part)
    return b"".join(parts)


async def _settle(feed: asyncio.Task[None]) -> None:
    """A program may end without reading all of its stdin; that is its right."""
    with suppress(BrokenPipeError, ConnectionResetError, asyncssh.Error):
        await feed


def _after(out: bytes, marker: str) -> bytes:
    """Drop what the login shell's start-up files printed before our command."""
    mark = marker.encode() + b"\n"
    _, found, rest = out.partition(mark)
    return rest if found else out


def _timeout_text(name: str, argv: Sequence[str], seconds: float) -> str:
    return f"{argv[0]} on {name} did not end within {seconds:g} s and was given up."


def _silent_text(host: str, port: int) -> str:
    return (
        f"{host} port {port} did not answer within {CONNECT_SECONDS:g} s. "
        "Check that the machine is on, that the address is right and that no firewall drops the port."
    )


def _unreachable_text(host: str, port: int, error: Exception) -> str:
    return (
        f"{host} port {port} cannot be reached: {error or type(error).__name__}. "
        "Check the address and the port, and that sshd runs there."
    )


def _refused_text(target: Target, password: str) -> str:
    if password:
        return f"{target.host} refused the password of {target.username!r}. Check user and password."
    return (
        f"{target.host} refused our key for the user {target.username!r}. Add the public key of the SSH identity "
        f"to ~{target.username}/.ssh/authorized_keys there, or register the device again with its password."
    )

"""Three small SSH hosts on this one machine, each with its own address, key, user and home folder."""

import asyncio
import errno
import hmac
import os
import secrets
import signal
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncssh

from demo.packages import PartMissing

USUAL_PORT = 2211
CHUNK_BYTES = 256 * 1024
# The hosts stand for machines without a GPU: three of them cannot share the one that may be here.
WITHOUT_GPU = {
    "CUDA_VISIBLE_DEVICES": "-1",
    "HIP_VISIBLE_DEVICES": "-1",
    "GGML_VK_VISIBLE_DEVICES": "",
    "ONEAPI_DEVICE_SELECTOR": "!*:*",
}


@dataclass(frozen=True)
class DemoHost:
    """What one host is called and where its things lie."""

    name: str
    address: str
    username: str
    folder: Path
    programs: Path

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def authorized_keys(self) -> Path:
        return self.home / ".ssh" / "authorized_keys"

    @property
    def port_file(self) -> Path:
        return self.folder / "port"

    @property
    def password(self) -> str:
        return (self.folder / "password").read_text().strip()

    @property
    def public_key(self) -> str:
        """The public half of its host key, as OpenSSH writes it."""
        return asyncssh.read_private_key(str(self.folder / "host_key")).export_public_key().decode()

    @property
    def key_text(self) -> str:
        """Algorithm and fingerprint of its host key, as `ssh-keygen -lf` names them."""
        key = asyncssh.read_private_key(str(self.folder / "host_key"))
        return f"{key.get_algorithm()} {key.get_fingerprint()}"

    @property
    def port(self) -> int:
        """Where it listens, as last chosen."""
        return int(self.port_file.read_text()) if self.port_file.exists() else USUAL_PORT

    def environment(self) -> dict[str, str]:
        return WITHOUT_GPU | {
            "HOME": str(self.home),
            "USER": self.username,
            "LOGNAME": self.username,
            "SHELL": "/bin/sh",
            "LANG": "C.UTF-8",
            "PATH": f"{self.programs}:/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",
        }


def hosts(folder: Path) -> list[DemoHost]:
    """The three hosts of the demo whose things lie under `folder`."""
    people = (("box-1", "127.0.0.11", "ada"), ("box-2", "127.0.0.12", "ben"), ("box-3", "127.0.0.13", "cleo"))
    return [
        DemoHost(name, address, username, folder / "hosts" / name, folder / "programs")
        for name, address, username in people
    ]


def furnish(host: DemoHost) -> asyncssh.SSHKey:
    """Make what the host lacks and keep what it has, so that its fingerprint and password stay; its host key."""
    host.authorized_keys.parent.mkdir(parents=True, exist_ok=True)
    host.authorized_keys.parent.chmod(0o700)
    key_file = host.folder / "host_key"
    if not key_file.exists():
        write_private(key_file, asyncssh.generate_private_key("ssh-ed25519").export_private_key())
    if not (host.folder / "password").exists():
        write_private(host.folder / "password", secrets.token_urlsafe(12).encode())
    return asyncssh.read_private_key(str(key_file))


def write_private(path: Path, content: bytes) -> None:
    part = path.with_name(f"{path.name}.part")
    with os.fdopen(os.open(part, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    part.replace(path)


@asynccontextmanager
async def serving(host: DemoHost) -> AsyncIterator[None]:
    """The host answers while this lasts; commands that were not detached end with it."""
    commands: set[int] = set()
    key = furnish(host)
    listening = listen(host)
    server = await asyncssh.listen(
        sock=listening,
        server_factory=lambda: Door(host),
        server_host_keys=[key],
        process_factory=lambda process: run_command(host, process, commands),
        encoding=None,
        allow_pty=False,
        keepalive_interval=30,
        login_timeout=30,
    )
    host.port_file.write_text(str(listening.getsockname()[1]))
    try:
        yield
    finally:
        server.close()
        for group in list(commands):
            end_group(group, signal.SIGKILL)


def listen(host: DemoHost) -> socket.socket:
    """A socket on the host's own address: on the port it had, else the usual one, else any free one."""
    for port in dict.fromkeys((host.port, USUAL_PORT, 0)):
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host.address, port))
            sock.listen(64)
        except OSError as error:
            sock.close()
            if error.errno == errno.EADDRINUSE:
                continue
            raise PartMissing(address_text(host, error)) from None
        return sock
    raise PartMissing(
        f"{host.address} has no free port. Remedy: end programs that listen on it, then start again."
    )


def address_text(host: DemoHost, error: OSError) -> str:
    remedy = (
        f"macOS knows only 127.0.0.1 until you add it: sudo ifconfig lo0 alias {host.address}"
        if sys.platform == "darwin"
        else f"see that the loopback interface is up and carries 127.0.0.0/8 (ip addr add {host.address}/8 dev lo)"
    )
    cause = f"The demo host {host.name} cannot listen on {host.address}: {error.strerror}."
    return f"{cause} Remedy: {remedy}, then start again."


class Door(asyncssh.SSHServer):
    """Who may log in to one host, and where its tunnels may lead."""

    def __init__(self, host: DemoHost) -> None:
        self.host = host
        self.connection: asyncssh.SSHServerConnection | None = None

    def connection_made(self, connection: asyncssh.SSHServerConnection) -> None:
        self.connection = connection

    def begin_auth(self, username: str) -> bool:
        """Read the keys at each login: our key is added while the host runs, and opens its own account only."""
        assert self.connection is not None, "asyncssh announces the connection first"
        keys = self.host.authorized_keys
        if username == self.host.username and keys.exists() and keys.stat().st_size:
            self.connection.set_authorized_keys(str(keys))
        return True

    def password_auth_supported(self) -> bool:
        return True

    def validate_password(self, username: str, password: str) -> bool:
        is_right = hmac.compare_digest(password.encode(), self.host.password.encode())
        return is_right and username == self.host.username

    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> bool:
        return dest_host in {"127.0.0.1", "localhost", self.host.address}


async def run_command(host: DemoHost, process: asyncssh.SSHServerProcess[bytes], commands: set[int]) -> None:
    """Run one command as a login shell would, in a process group of its own."""
    if process.command is None:
        process.stderr.write(b"This demo host runs commands, it has no interactive shell.\n")
        process.exit(1)
        return
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(
        *("/bin/sh", "-c", process.command),
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        env=host.environment() | client_variables(host, process),
        cwd=host.home,
        start_new_session=True,
    )
    commands.add(child.pid)
    assert child.stdin is not None and child.stdout is not None and child.stderr is not None, "piped"
    feed = asyncio.create_task(take_in(process, child, child.stdin))
    try:
        await asyncio.gather(give_out(child.stdout, process.stdout), give_out(child.stderr, process.stderr))
        status = await child.wait()
    except (asyncssh.Error, OSError):  # the client went away
        end_group(child.pid, signal.SIGHUP)
        status = await child.wait()
    finally:
        feed.cancel()
        commands.discard(child.pid)
    if status < 0:
        process.exit_with_signal(signal.Signals(-status).name.removeprefix("SIG"))
    else:
        process.exit(status)


def client_variables(host: DemoHost, process: asyncssh.SSHServerProcess[bytes]) -> dict[str, str]:
    client, port = process.get_extra_info("peername")[:2]
    return {"SSH_CONNECTION": f"{client} {port} {host.address} {host.port}"}


async def take_in(
    process: asyncssh.SSHServerProcess[bytes], child: asyncio.subprocess.Process, sink: asyncio.StreamWriter
) -> None:
    """Pass on what the client sends: data, signals, the end of its input, or its going away."""
    while True:
        try:
            data = await process.stdin.read(CHUNK_BYTES)
        except asyncssh.SignalReceived as received:
            end_group(child.pid, getattr(signal, f"SIG{received.signal}", signal.SIGTERM))
            continue
        except (asyncssh.BreakReceived, asyncssh.TerminalSizeChanged):
            continue
        except (asyncssh.Error, OSError):
            end_group(child.pid, signal.SIGHUP)
            return
        if not data:
            break
        with suppress(BrokenPipeError, ConnectionResetError):
            sink.write(data)
            await sink.drain()
    sink.close()
    await process.channel.wait_closed()
    end_group(child.pid, signal.SIGHUP)


async def give_out(source: asyncio.StreamReader, sink: Any) -> None:
    while data := await source.read(CHUNK_BYTES):
        sink.write(data)
        await sink.drain()


def end_group(group: int, sign: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, sign)


def as_table(all_hosts: Sequence[DemoHost]) -> str:
    """What a person types to register the hosts by hand."""
    rows = [
        f"{host.name:8}{host.address:12} port {host.port}  user {host.username:6} password {host.password}\n"
        f"{'':8}host key {host.key_text}"
        for host in all_hosts
    ]
    return "\n".join(rows)

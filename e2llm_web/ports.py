"""Is a TCP port free, and who holds it?"""

import asyncio
import errno
import socket
from pathlib import Path

LISTENING = "0A"
LOWEST, HIGHEST = 1, 65535


def is_free(host: str, port: int) -> bool:
    """Raises OSError when nobody could listen there: no such address, or not for this user."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise
    return True


async def answers(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.close()
    return True


def holder(port: int) -> str:
    """Who listens on the port, as far as this user may see: `pid 812 (python3 -m http.server 8000)`."""
    inodes = _listening_inodes(port)
    for pid in (int(name) for name in _names(Path("/proc")) if name.isdigit()):
        folder = Path(f"/proc/{pid}/fd")
        if any(_target(folder / name) in inodes for name in _names(folder)):
            words = (
                Path(f"/proc/{pid}/cmdline")
                .read_bytes()
                .replace(b"\0", b" ")
                .decode(errors="replace")
                .strip()
            )
            return f"pid {pid} ({words[:120]})"
    return "a program of another user or one that this system does not name"


def _listening_inodes(port: int) -> set[str]:
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        lines = Path(table).read_text().splitlines()[1:] if Path(table).exists() else []
        for line in lines:
            fields = line.split()
            if fields[3] == LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    return inodes


def _names(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir()]
    except OSError:
        return []


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""

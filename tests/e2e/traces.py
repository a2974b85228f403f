"""What the product has left on the demo's hosts: processes, files and listening sockets."""

import os
import re
import shutil
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from demo.hosts import DemoHost

LISTENING = "0A"
MARKER = re.compile(r"E2LLM_MARKER=(e2llm-[0-9a-f]+)")


def processes(lab: Sequence[DemoHost]) -> dict[int, str]:
    """Pid -> command line of everything that runs in the home of one of the hosts, passing looks included."""
    return running_with({f"HOME={host.home}" for host in lab})


def replicas(lab: Sequence[DemoHost]) -> dict[int, str]:
    """Those of them that were started to stay: they carry our marker."""
    return {pid: command for pid, command in processes(lab).items() if MARKER.search(environment(pid))}


def end(lab: Sequence[DemoHost]) -> None:
    """Whatever a test has left: processes, and their slot folders, which do not lie under the host's home."""
    for pid in processes(lab):
        marker = MARKER.search(environment(pid))
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        if marker is not None:
            shutil.rmtree(f"/dev/shm/{marker[1]}", ignore_errors=True)


def running_with(settings: set[str]) -> dict[int, str]:
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        if settings & set(environment(int(folder.name)).split("\0")):
            found[int(folder.name)] = read(folder / "cmdline").replace("\0", " ")
    return {pid: command for pid, command in found.items() if command}


def environment(pid: int) -> str:
    return read(Path(f"/proc/{pid}/environ"))


def read(path: Path) -> str:
    """A file of a process; empty when that is gone."""
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError:
        return ""


def files(lab: Sequence[DemoHost], markers: Sequence[str]) -> list[Path]:
    """Everything under the run folders and the slot folders."""
    run_files = [path for host in lab for path in (host.home / ".cache").rglob("*") if path.name != "e2llm"]
    return run_files + [path for marker in markers for path in Path("/dev/shm").glob(f"*{marker}*")]


def listening(lab: Sequence[DemoHost], ports: Sequence[int]) -> set[tuple[str, int]]:
    """Which of these ports are listened on at the addresses of the hosts."""
    addresses = {hexadecimal(host.address): host.address for host in lab}
    found = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        local, state = line.split()[1], line.split()[3]
        address, port = local.split(":")
        if state == LISTENING and address in addresses and int(port, 16) in ports:
            found.add((addresses[address], int(port, 16)))
    return found


def hexadecimal(address: str) -> str:
    """An IPv4 address as /proc/net/tcp writes it on a little-endian machine."""
    return "".join(f"{int(part):02X}" for part in reversed(address.split(".")))

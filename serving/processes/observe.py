"""What runs on a host: facts before a start, our processes after it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from inventory.remote import Connection, RemoteError
from serving.processes import programs

FIRST_PORT, LAST_PORT = 18400, 19399
RECENT_MINUTES, LONG_MINUTES = 10, 24 * 60  # since a folder changed


@dataclass(frozen=True)
class HostState:
    os: str
    home: str
    boot_id: str
    has_shared_memory: bool
    memory_available_bytes: int
    listening_ports: frozenset[int]


@dataclass(frozen=True)
class Seen:
    """One process with a marker in its environment; `installation` is empty when it does not say who started it."""

    pid: int
    marker: str
    start_ticks: str
    state: str
    resident_bytes: int
    installation: str
    command: str

    @property
    def is_stopped(self) -> bool:
        """Frozen by a signal: it is there, and will do nothing."""
        return self.state == "T"


@dataclass(frozen=True)
class Observation:
    boot_id: str
    processes: tuple[Seen, ...]

    def find(self, marker: str, pid: int | None, start_ticks: str, boot_id: str) -> Seen | None:
        """The process that was started as this row; a reused process number or a reboot does not match."""
        if boot_id and boot_id != self.boot_id:
            return None
        for seen in self.processes:
            if seen.marker == marker and (pid is None or (seen.pid, seen.start_ticks) == (pid, start_ticks)):
                return seen
        return None


@dataclass(frozen=True)
class OnGpu:
    """None where the host does not tell."""

    video_bytes: int | None
    received_bytes: int | None


@dataclass(frozen=True)
class Folder:
    """Files of one process; `age`: "fresh", "resting" or "old"; `installation`: empty when nothing says whose."""

    path: str
    age: str
    is_empty: bool
    installation: str

    @property
    def marker(self) -> str:
        return self.path.rpartition("/")[2]


@dataclass(frozen=True)
class Identity:
    """What one process is: its command line, and the installed program that it runs (empty: another)."""

    words: tuple[str, ...]
    program: str
    home: str
    has_shared_memory: bool


def answers(stdout: str) -> Iterator[tuple[str, str]]:
    """(word, rest) of every line that is an answer of one of our programs."""
    for line in stdout.splitlines():
        if line.startswith(programs.ANSWER):
            word, _, rest = line.removeprefix(programs.ANSWER).partition(" ")
            yield word, rest.strip()


async def run_program(
    connection: Connection, text: str, args: list[str], timeout_seconds: float = 30.0
) -> str:
    done = await connection.script(text, args, timeout_seconds=timeout_seconds)
    return done.stdout


async def host_state(connection: Connection) -> HostState:
    found: dict[str, str] = {}
    ports: set[int] = set()
    for word, rest in answers(await run_program(connection, programs.FACTS, [])):
        if word == "hex_port":
            ports.add(int(rest, 16))
        elif word == "port" and rest.isdigit():
            ports.add(int(rest))
        else:
            found[word] = rest
    if "end" not in found or not found["home"].startswith("/"):
        raise RemoteError("The host did not answer the first questions. Is its login shell a POSIX shell?")
    return HostState(
        os=found["os"],
        home=found["home"],
        boot_id=found["boot"],
        has_shared_memory=found["shm"] == "yes",
        memory_available_bytes=int(found["memory_kilobytes"] or 0) * 1024,
        listening_ports=frozenset(ports),
    )


async def observe(connection: Connection) -> Observation:
    """Every process of ours on the host, whichever control plane started it."""
    boot_id, processes, complete = "", [], False
    for word, rest in answers(await run_program(connection, programs.OBSERVE, [])):
        if word == "boot":
            boot_id = rest
        elif word == "process":
            processes.append(seen_from(rest))
        complete = complete or word == "end"
    if not complete:
        raise RemoteError("The host's list of processes was cut short.")
    return Observation(boot_id, tuple(processes))


def seen_from(line: str) -> Seen:
    pid, marker, start_ticks, state, resident_kilobytes, installation, *command = line.split(" ", 6)
    return Seen(
        pid=int(pid),
        marker=marker,
        start_ticks=start_ticks,
        state=state,
        resident_bytes=int(resident_kilobytes) * 1024,
        installation="" if installation == "-" else installation,
        command=command[0] if command else "",
    )


async def on_gpu(connection: Connection, pid: int, rpc_port: int | None) -> OnGpu:
    """What a process has put on its GPU, as far as the host tells."""
    args = [str(pid), str(rpc_port or "")]
    found = dict(answers(await run_program(connection, programs.ON_GPU, args)))
    video, received = found.get("video_mebibytes"), found.get("received")
    return OnGpu(int(video) * 2**20 if video else None, int(received) if received else None)


async def folders(connection: Connection, roots: Sequence[str]) -> list[Folder]:
    """Every folder of our user that is named after a marker, under its home and the other roots."""
    found, complete = [], False
    minutes = [str(RECENT_MINUTES), str(LONG_MINUTES)]
    for word, rest in answers(await run_program(connection, programs.FOLDERS, [*minutes, *roots])):
        if word == "folder":
            age, holds, owner, path = rest.split(" ", 3)
            found.append(Folder(path, age, holds == "nothing", "" if owner == "-" else owner))
        complete = complete or word == "end"
    if not complete:
        raise RemoteError("The host's list of folders was cut short.")
    return found


async def identity(connection: Connection, pid: int, programs_there: Sequence[str]) -> Identity:
    """The whole command line of a process, and which of the installed programs it runs."""
    found: dict[str, str] = {"program": ""}
    words = []
    for word, rest in answers(await run_program(connection, programs.IDENTITY, [str(pid), *programs_there])):
        if word == "word":
            words.append(rest)
        else:
            found[word] = rest
    if "end" not in found:
        raise RemoteError(f"The host did not say what process {pid} is.")
    return Identity(tuple(words), found["program"], found["home"], found["shm"] == "yes")


def free_port(taken: frozenset[int], start: int = FIRST_PORT) -> int | None:
    """The first port at or after `start` that nothing on the host listens on."""
    return next((port for port in range(start, LAST_PORT + 1) if port not in taken), None)


async def log_tail(connection: Connection, path: str, lines: int = 200) -> str:
    return await run_program(connection, programs.LOG_TAIL, [path, str(lines)])


async def placement_lines(connection: Connection, path: str) -> str:
    return await run_program(connection, programs.PLACEMENT_LINES, [path])


async def trim_log(connection: Connection, path: str, limit_bytes: int) -> None:
    await run_program(connection, programs.TRIM_LOG, [path, str(limit_bytes)])

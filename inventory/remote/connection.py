"""One open way to a device: run a program, move a file, reach a port on its loopback address."""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from inventory.remote.errors import RemoteError
from inventory.remote.streams import ReportBytes

WRITE_PROGRAM = (
    'umask 077; mkdir -p -- "${1%/*}" && cat > "$1.part" && chmod "$2" "$1.part" && mv -f -- "$1.part" "$1"'
)
PART_PROGRAM = 'test -r "$1" && tail -c "+$2" < "$1" | head -c "$3"'
READ_PROGRAM = 'head -c "$2" < "$1"'
HOLD_END_SECONDS = 15.0
# A pulled cable ends no program, sshd waits for hours: the host itself counts the seconds and kills the group.
BOUNDED_PROGRAM = """
trap : HUP TERM
life=$1; shift
"$@" > /dev/null 2>&1 < /dev/null &
child=$!
(
  while [ "$life" -gt 0 ] && kill -0 "$child" 2> /dev/null; do sleep 1; life=$((life - 1)); done
  kill -9 "$child"; kill -9 -$$
) > /dev/null 2>&1 < /dev/null &
cat > /dev/null
kill -9 "$child" 2> /dev/null
wait "$child"
"""

Tell = Callable[[str], Awaitable[None]]


@dataclass(frozen=True)
class Completed:
    exit_status: int
    stdout: str
    stderr: str

    @property
    def succeeded(self) -> bool:
        return self.exit_status == 0


class Connection(ABC):
    """One open way to a device. Data reach a program as arguments or on stdin, never as shell text."""

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    async def _execute(
        self,
        argv: Sequence[str],
        stdin: bytes | Path,
        timeout_seconds: float,
        report: ReportBytes | None = None,
    ) -> tuple[int, bytes, bytes]: ...

    @abstractmethod
    def tunnel(self, host_port: int) -> AbstractAsyncContextManager[int]:
        """A local port that leads to `host_port` on the device's own loopback address."""

    @abstractmethod
    def hold(self, argv: Sequence[str]) -> AbstractAsyncContextManager[Tell]:
        """Run a program for as long as the block: its stdin ends when the block does, or when we are lost.

        What the block gets writes a line to that stdin.
        """

    def hold_bounded(self, argv: Sequence[str], life_seconds: int) -> AbstractAsyncContextManager[Tell]:
        """As `hold`, without stdin and output: the host ends it after that time, whatever has become of us."""
        return self.hold(["/bin/sh", "-c", BOUNDED_PROGRAM, "sh", str(life_seconds), *argv])

    async def run(
        self, argv: Sequence[str], *, stdin: bytes = b"", timeout_seconds: float = 30.0
    ) -> Completed:
        status, out, err = await self._execute(argv, stdin, timeout_seconds)
        return Completed(status, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"))

    async def script(
        self, text: str, args: Sequence[str] = (), *, timeout_seconds: float = 30.0
    ) -> Completed:
        """Run a fixed /bin/sh program with `args` as its $1, $2, ...; it is parsed whole before it runs."""
        given = " ".join(shlex.quote(checked(arg)) for arg in args)
        program = f'main() {{\n{text}\n}}\nset -- {given}\nmain "$@" < /dev/null\n'
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
        argv = ["/bin/sh", "-c", WRITE_PROGRAM, "sh", absolute(path), f"{mode:o}"]
        status, _, err = await self._execute(argv, source, timeout_seconds, progress)
        if status != 0:
            reason = err.decode("utf-8", "replace").strip()[-300:]
            raise RemoteError(
                f"{path} could not be written on {self.name}: {reason or f'exit status {status}'}"
            )

    async def read_part(self, path: str, start: int, length: int, *, timeout_seconds: float = 120.0) -> bytes:
        """`length` bytes of a file from byte `start` on."""
        argv = ["/bin/sh", "-c", PART_PROGRAM, "sh", absolute(path), str(start + 1), str(length)]
        return await self._read(path, argv, timeout_seconds)

    async def read_file(self, path: str, max_bytes: int, *, timeout_seconds: float = 120.0) -> bytes:
        """The first `max_bytes` of a file."""
        argv = ["/bin/sh", "-c", READ_PROGRAM, "sh", absolute(path), str(max_bytes)]
        return await self._read(path, argv, timeout_seconds)

    async def _read(self, path: str, argv: Sequence[str], timeout_seconds: float) -> bytes:
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
            if len(PurePosixPath(absolute(path)).parts) < 3:
                raise RemoteError(f"{path!r} is too near the root to be removed")
        done = await self.run(["rm", "-rf", "--", *paths], timeout_seconds=60.0)
        if not done.succeeded:
            raise RemoteError(f"files could not be removed on {self.name}: {done.stderr.strip()[-300:]}")


def checked(word: str) -> str:
    if "\0" in word:
        raise RemoteError("a NUL character cannot be part of a command or path")
    return word


def absolute(path: str) -> str:
    if not checked(path).startswith("/") or ".." in PurePosixPath(path).parts:
        raise RemoteError(f"{path!r} is not an absolute path without '..'")
    return path


def timeout_text(name: str, argv: Sequence[str], seconds: float) -> str:
    return f"{argv[0]} on {name} did not end within {seconds:g} s and was given up."

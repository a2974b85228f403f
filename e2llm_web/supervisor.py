"""Starts processes, prefixes what they print, starts again what dies or falls silent, and stops everything."""

import asyncio
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

QUICK_SECONDS = 10.0  # a process that lived shorter than this has failed to start
QUICK_FAILURES = 5
LONGEST_PAUSE_SECONDS = 4.0
READY_SECONDS = 90.0
LOOK_SECONDS = 5.0
REASON_LINES = 15
CANNOT_WORK = 78  # sysexits' EX_CONFIG: a part says that starting it again will not help
LAST_OUTPUT_SECONDS = 1.0  # a detached grandchild may keep the pipe open for good
LONGEST_LINE_BYTES = 65536


@dataclass(frozen=True)
class Part:
    """One process of the product."""

    name: str
    argv: Sequence[str]
    environment: Mapping[str, str]
    is_ready: Callable[[], Awaitable[bool]] | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    grace_seconds: float = 6.0
    may_finish: bool = False
    unsaid: tuple[str, ...] = ()  # words of lines that tell a person nothing
    is_silent: Callable[[], Awaitable[bool]] | None = None  # asked while it runs: it shows no sign of life
    patience_seconds: float = 0.0  # from its start until this is asked


@dataclass
class Running:
    part: Part
    keeper: asyncio.Task[None] | None = None
    process: asyncio.subprocess.Process | None = None
    last_lines: deque[str] = field(default_factory=lambda: deque(maxlen=REASON_LINES))


class PartFailed(Exception):
    """A part does not stay up; the text says which, how it ended and what it said."""


class StopRequested(Exception):
    """Somebody asked the supervisor to end."""


class Supervisor:
    """Parts are started in stages and stopped in the reverse order of their stages."""

    def __init__(self, say: Callable[[str, str], None]) -> None:
        self.say = say
        self.stages: list[list[Running]] = []
        self.stop_asked = asyncio.Event()
        self.failure: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.is_stopping = False
        self.watchdog: asyncio.subprocess.Process | None = None

    async def start(self, *parts: Part) -> None:
        """Start one stage and return when each part is ready; PartFailed or StopRequested when it comes to that."""
        stage = [Running(part) for part in parts]
        self.stages.append(stage)
        for running in stage:
            running.keeper = asyncio.create_task(self._keep(running))
        await self._unless_over(asyncio.create_task(self._all_ready(stage)))

    async def wait(self) -> None:
        """Return never: ends by StopRequested or PartFailed."""
        await self._unless_over(asyncio.get_running_loop().create_future())

    async def _unless_over(self, work: asyncio.Future[Any]) -> None:
        asked = asyncio.create_task(self.stop_asked.wait())
        await asyncio.wait({work, asked, self.failure}, return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        if work.done() and not self.failure.done() and not self.stop_asked.is_set():
            work.result()
            return
        work.cancel()
        await asyncio.wait({work})
        if self.failure.done():
            raise PartFailed(self.failure.result())
        raise StopRequested

    async def _all_ready(self, stage: list[Running]) -> None:
        await asyncio.gather(*(self._ready(running) for running in stage))

    async def _ready(self, running: Running) -> None:
        part = running.part
        if part.is_ready is None:
            return
        deadline = time.monotonic() + READY_SECONDS
        while not await part.is_ready():
            if time.monotonic() > deadline:
                raise PartFailed(f"{part.name} did not answer within {READY_SECONDS:.0f} s.{said(running)}")
            await asyncio.sleep(0.05)

    async def _keep(self, running: Running) -> None:
        failures = 0
        while not self.is_stopping:
            began = time.monotonic()
            how = await self._run_once(running)
            if self.is_stopping or (how == "exit 0" and running.part.may_finish):
                return
            if how == f"exit {CANNOT_WORK}":
                self._fail(f"{running.part.name} cannot work here.{said(running)}")
                return
            failures = failures + 1 if time.monotonic() - began < QUICK_SECONDS else 1
            if failures >= QUICK_FAILURES:
                self._fail(
                    f"{running.part.name} failed {failures} times in a row, last with {how}.{said(running)}"
                )
                return
            self.say("up", f"{running.part.name} ended with {how}; starting it again")
            await asyncio.sleep(min(0.25 * 2 ** (failures - 1), LONGEST_PAUSE_SECONDS))

    def _fail(self, reason: str) -> None:
        if not self.failure.done():
            self.failure.set_result(reason)

    async def _run_once(self, running: Running) -> str:
        reader, writer = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *running.part.argv,
                env=dict(running.part.environment),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=writer,
                stderr=writer,
                start_new_session=True,
            )
        except OSError as error:
            os.close(reader)
            running.last_lines.append(str(error))
            return "an error before it ran"
        finally:
            os.close(writer)
        running.process = process
        await self._tell_watchdog(f"+{process.pid}")
        output = asyncio.create_task(self._pass_on(running, reader))
        watch = asyncio.create_task(self._end_when_silent(running.part, process.pid))
        code = await process.wait()
        watch.cancel()
        kill_group(process.pid)
        await asyncio.wait({output}, timeout=LAST_OUTPUT_SECONDS)
        output.cancel()
        await self._tell_watchdog(f"-{process.pid}")
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit {code}"

    async def _end_when_silent(self, part: Part, group: int) -> None:
        """A process that runs and does nothing is ended, and started again like one that died."""
        if part.is_silent is None:
            return
        await asyncio.sleep(part.patience_seconds)
        while not await part.is_silent():
            await asyncio.sleep(LOOK_SECONDS)
        self.say("up", f"{part.name} runs but gives no sign of life; ending it")
        kill_group(group)

    async def _pass_on(self, running: Running, descriptor: int) -> None:
        """Our own pipe, because asyncio's wait() may not return while a grandchild holds the child's pipe open."""
        output = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(output)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: protocol, os.fdopen(descriptor, "rb", buffering=0)
        )
        rest = b""
        try:
            while chunk := await output.read(LONGEST_LINE_BYTES):
                *lines, rest = (rest + chunk).split(b"\n")
                if len(rest) > LONGEST_LINE_BYTES:
                    lines, rest = [*lines, rest], b""
                for line in lines:
                    self._print(running, line)
            if rest:
                self._print(running, rest)
        finally:
            transport.close()

    def _print(self, running: Running, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip()
        running.last_lines.append(text)
        if text and not any(words in text for words in running.part.unsaid):
            self.say(running.part.name, text)

    async def _tell_watchdog(self, line: str) -> None:
        if self.watchdog is None or self.watchdog.returncode is not None:
            self.watchdog = await asyncio.create_subprocess_exec(
                *(sys.executable, "-S", "-E", str(Path(__file__).with_name("watchdog.py"))),
                stdin=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
            alive = [running.process for running in self._all() if running.process is not None]
            line = "\n".join([line, *(f"+{process.pid}" for process in alive if process.returncode is None)])
        assert self.watchdog.stdin is not None, "the watchdog is started with a pipe"
        self.watchdog.stdin.write(f"{line}\n".encode())

    def _all(self) -> list[Running]:
        return [running for stage in self.stages for running in stage]

    async def stop(self) -> None:
        """Stop the stages, last first; a second request to stop kills at once."""
        self.is_stopping = True
        self.stop_asked.clear()
        for stage in reversed(self.stages):
            await asyncio.gather(*(self._stop_one(running) for running in stage))
        if self.watchdog is not None and self.watchdog.stdin is not None:
            self.watchdog.stdin.close()
            await self.watchdog.wait()

    async def _stop_one(self, running: Running) -> None:
        process, keeper = running.process, running.keeper
        if keeper is None or keeper.done():
            return
        if process is None or process.returncode is not None:  # in the pause before a restart
            keeper.cancel()
            return
        process.send_signal(running.part.stop_signal)
        asked = asyncio.create_task(self.stop_asked.wait())
        await asyncio.wait(
            {keeper, asked}, timeout=running.part.grace_seconds, return_when=asyncio.FIRST_COMPLETED
        )
        asked.cancel()
        if not keeper.done():
            self.say("up", f"{running.part.name} did not stop when asked; killing it")
            kill_group(process.pid)
            await keeper


def said(running: Running) -> str:
    lines = [line for line in running.last_lines if line]
    return "\nIts last words:\n" + "\n".join(f"  {line}" for line in lines) if lines else ""


def kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # nothing of it is left

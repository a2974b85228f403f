import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from e2llm_web import watchdog
from e2llm_web.supervisor import Part, PartFailed, StopRequested, Supervisor
from tests.conftest import wait_until

SLEEPER = "import os, time; print('pid', os.getpid(), flush=True); time.sleep(600)"
WITH_CHILD = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"


class Diary:
    """Everything the supervisor said, and to wait for what it will say."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def write(self, name: str, text: str) -> None:
        self.lines.append(f"{name} {text}")

    async def saw(self, words: str, times: int = 1) -> None:
        async with asyncio.timeout(30):
            while sum(words in line for line in self.lines) < times:
                await asyncio.sleep(0.02)


def part(name: str, program: str, **options: object) -> Part:
    return Part(name, [sys.executable, "-c", program], dict(os.environ), **options)


@pytest.fixture
def diary() -> Diary:
    return Diary()


@pytest.fixture
async def supervisor(diary: Diary) -> AsyncIterator[Supervisor]:
    one = Supervisor(diary.write)
    yield one
    await one.stop()


def pid_of(supervisor: Supervisor) -> int:
    process = supervisor.stages[-1][-1].process
    assert process is not None
    return process.pid


def is_gone(pid: int) -> Callable[[], bool]:
    return lambda: not watchdog.is_alive(pid)


async def test_killed_part_is_started_again(supervisor: Supervisor, diary: Diary) -> None:
    await supervisor.start(part("sleeper", SLEEPER))
    await diary.saw("sleeper pid")
    os.kill(pid_of(supervisor), signal.SIGKILL)
    await diary.saw("sleeper pid", times=2)
    assert "up sleeper ended with signal SIGKILL; starting it again" in diary.lines


async def test_children_of_a_killed_part_do_not_stay(supervisor: Supervisor, diary: Diary) -> None:
    await supervisor.start(part("parent", WITH_CHILD))
    await asyncio.sleep(0.3)
    group = pid_of(supervisor)
    os.kill(group, signal.SIGKILL)
    await diary.saw("starting it again")
    wait_until(is_gone(group), "the group of the killed part ends")


async def test_part_that_runs_and_falls_silent_is_started_again(supervisor: Supervisor, diary: Diary) -> None:
    looks = iter([True])

    async def is_silent() -> bool:
        return next(looks, False)

    await supervisor.start(part("hung", SLEEPER, is_silent=is_silent))
    await diary.saw("hung ended with signal SIGKILL; starting it again")
    assert "up hung runs but gives no sign of life; ending it" in diary.lines


async def test_part_that_never_stays_up_ends_the_whole_with_its_last_words(supervisor: Supervisor) -> None:
    with pytest.raises(
        PartFailed, match=r"broken failed 5 times in a row, last with exit 3(.|\n)*no such table"
    ):
        await supervisor.start(part("broken", "import sys; print('no such table'); sys.exit(3)"))
        await supervisor.wait()


async def test_part_that_cannot_work_here_is_not_tried_again(supervisor: Supervisor, diary: Diary) -> None:
    with pytest.raises(PartFailed, match=r"hosts cannot work here(.|\n)*no llama.cpp build fits"):
        await supervisor.start(part("hosts", "import sys; print('no llama.cpp build fits'); sys.exit(78)"))
        await supervisor.wait()
    assert diary.lines == ["hosts no llama.cpp build fits"]


async def test_missing_program_is_named(supervisor: Supervisor) -> None:
    with pytest.raises(PartFailed, match="/nonexistent/valkey-server"):
        await supervisor.start(Part("redis", ["/nonexistent/valkey-server"], {}))
        await supervisor.wait()


async def test_part_that_may_finish_is_not_started_again(supervisor: Supervisor, diary: Diary) -> None:
    await supervisor.start(part("driver", "print('done')", may_finish=True))
    await diary.saw("driver done")
    keeper = supervisor.stages[0][0].keeper
    assert keeper is not None
    await asyncio.wait_for(keeper, 10)
    assert not any("starting it again" in line for line in diary.lines)


async def test_start_waits_until_the_part_is_ready(supervisor: Supervisor, tmp_path: Path) -> None:
    sign = tmp_path / "ready"

    async def is_ready() -> bool:
        return sign.exists()

    program = f"import pathlib, time; time.sleep(0.3); pathlib.Path({str(sign)!r}).touch(); time.sleep(600)"
    await supervisor.start(part("slow", program, is_ready=is_ready))
    assert sign.exists()


async def test_deaf_part_is_killed_after_its_grace(supervisor: Supervisor, diary: Diary) -> None:
    await supervisor.start(part("deaf", DEAF, grace_seconds=0.3))
    await diary.saw("deaf deaf")
    group = pid_of(supervisor)
    await supervisor.stop()
    assert not watchdog.is_alive(group)
    assert "up deaf did not stop when asked; killing it" in diary.lines


async def test_stop_request_ends_a_start_that_is_not_ready_yet(supervisor: Supervisor) -> None:
    async def never() -> bool:
        return False

    asyncio.get_running_loop().call_later(0.2, supervisor.stop_asked.set)
    with pytest.raises(StopRequested):
        await supervisor.start(part("slow", SLEEPER, is_ready=never))


async def test_stages_are_stopped_in_reverse(supervisor: Supervisor, diary: Diary) -> None:
    farewell = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('bye', flush=True), sys.exit(0)))\n"
        "print('here', flush=True); time.sleep(600)"
    )
    for name in ("first", "second"):
        await supervisor.start(part(name, farewell))
        await diary.saw(f"{name} here")
    await supervisor.stop()
    assert [line for line in diary.lines if line.endswith("bye")] == ["second bye", "first bye"]


async def test_very_long_line_is_passed_on_in_pieces(supervisor: Supervisor, diary: Diary) -> None:
    await supervisor.start(part("chatty", "print('x' * 200_000); print('end')", may_finish=True))
    await diary.saw("chatty end")
    assert sum(line.count("x") for line in diary.lines) == 200_000


def test_killed_supervisor_leaves_no_part(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    program = (
        "import asyncio, os, pathlib, sys\n"
        "from e2llm_web.supervisor import Part, Supervisor\n"
        "async def main():\n"
        "    one = Supervisor(lambda name, text: None)\n"
        f"    await one.start(Part('sleeper', [sys.executable, '-c', {WITH_CHILD!r}], dict(os.environ)))\n"
        "    while one.stages[0][0].process is None or one.watchdog is None: await asyncio.sleep(0.01)\n"
        "    await asyncio.sleep(0.3)\n"
        f"    pathlib.Path({str(note)!r}).write_text(str(one.stages[0][0].process.pid))\n"
        "    await one.wait()\n"
        "asyncio.run(main())\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program])
    group = int(wait_until(lambda: note.exists() and note.read_text(), "the supervisor has started its part"))
    process.kill()
    process.wait()
    wait_until(is_gone(group), "the watchdog ends the part")


async def test_lines_that_tell_nothing_are_not_passed_on(supervisor: Supervisor, diary: Diary) -> None:
    program = (
        "print('Hitting it again will end it'); print(); print('first'); print('last', flush=True); "
        + SLEEPER
    )
    await supervisor.start(part("noisy", program, unsaid=("Hitting it again",)))
    await diary.saw("noisy last")
    assert [line for line in diary.lines if line.startswith("noisy")][:2] == ["noisy first", "noisy last"]

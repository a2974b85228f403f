"""What profiling leaves on a host lives on a lease: it ends with the connection, and also when we fall silent."""

from __future__ import annotations

import asyncio
import secrets
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import PurePosixPath

from inventory.remote import Connection, RemoteError
from inventory.remote.connection import Tell

BEAT_SECONDS, LEASE_SECONDS = 5.0, 90.0
# The host counts beats instead of reading clocks, which may be set; with a pulled cable its sshd waits for hours.
# A hang-up reaches the whole group, also after the end of stdin: `rm` must not fall to it.
HOLD_PROGRAM = """\
cd {folder} || exit 1
trap : HUP TERM
trap '' PIPE
GGML_NO_BACKTRACE=1; export GGML_NO_BACKTRACE
(
  missed=0; before=
  while [ "$missed" -lt {misses} ]; do
    sleep {seconds}
    now=$(cat beat 2> /dev/null)
    if [ "$now" = "$before" ]; then missed=$((missed + 1)); else missed=0; before=$now; fi
  done
  [ -f pids ] && kill -9 $(cat pids)
  sleep 1
  cd / && rm -rf {folder}
  kill -9 -$$ || kill -9 $$
) > /dev/null 2>&1 < /dev/null &
watch=$!
: > holds
while read -r word; do
  if [ "$word" = start ]; then . ./start.sh; else echo "$word" > beat; fi
done
trap '' HUP TERM
kill -9 "$watch"
[ -f pids ] && kill -9 $(cat pids) 2>/dev/null
wait
cd / && rm -rf {folder}
"""
WAIT_PROGRAM = 'until [ -f "$1" ]; do sleep 0.1; done'
START_LINE = "({command} > {name}.log 2>&1 < /dev/null & echo $! >> pids; wait $!; echo $? > {name}.exit) &"


@dataclass(frozen=True)
class Bench:
    """One way to run the model on a device: which memory pool its blocks are timed in, and the flags for that."""

    pool: str
    flags: tuple[str, ...]


@dataclass(frozen=True)
class Launch:
    """What one server is started with, and the name of its log."""

    name: str
    bench: Bench
    blocks: int
    port: int
    argv: tuple[str, ...]


Start = Callable[[Sequence[Launch]], Awaitable[None]]


async def make_folder(connection: Connection, home: str) -> str:
    folder = f"{home}/.cache/e2llm/profile-{secrets.token_hex(6)}"
    done = await connection.run(["mkdir", "-p", "-m", "700", "--", folder])
    if not done.succeeded:
        raise RemoteError(f"{folder} could not be made on {connection.name}: {done.stderr.strip()[-200:]}")
    return folder


@asynccontextmanager
async def held(connection: Connection, folder: str) -> AsyncIterator[Start]:
    """What starts servers; when the block ends, or we are lost, the host kills them and removes the folder."""
    misses = max(round(LEASE_SECONDS / BEAT_SECONDS), 1)
    program = HOLD_PROGRAM.format(folder=shlex.quote(folder), misses=misses, seconds=f"{BEAT_SECONDS:g}")
    path = str(PurePosixPath(folder) / "hold.sh")
    await connection.write_file(path, program.encode(), 0o700)
    async with connection.hold(["/bin/sh", path]) as tell:
        # Before it holds, a lost connection would end the program and leave the folder.
        await connection.run(["/bin/sh", "-c", WAIT_PROGRAM, "sh", f"{folder}/holds"])

        async def start(launches: Sequence[Launch]) -> None:
            lines = (
                START_LINE.format(command=shlex.join(launch.argv), name=launch.name) for launch in launches
            )
            await connection.write_file(f"{folder}/start.sh", "\n".join(lines).encode())
            await tell("start")

        beating = asyncio.create_task(_beat(tell))
        try:
            yield start
        finally:
            beating.cancel()


async def _beat(tell: Tell) -> None:
    """Renew the lease; a connection that breaks is noticed by those who work with it."""
    with suppress(RemoteError):
        for number in count():
            await tell(str(number))
            await asyncio.sleep(BEAT_SECONDS)

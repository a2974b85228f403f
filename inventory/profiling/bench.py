"""Slices of different depth put on one host, and their servers timed in turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

from inventory.core.llama_log import has_complaint
from inventory.core.profile import DECODE, DEEP, PREFILL, Timing
from inventory.core.quantities import counted
from inventory.core.slices import SlicePlan, joined_ranges
from inventory.profiling.held import Launch, Start
from inventory.profiling.settings import Grid
from inventory.remote import Connection, RemoteError
from inventory.upstream import Health, LlamaServer, UpstreamError, open_server

START_SECONDS = 120.0
CALL_SECONDS = 300.0
FIRST_TOKEN = 100
SHALLOW_TOKENS = 64  # room before it for half of the most that a request decodes
SPARSE_PROGRAM = 'dd if=/dev/zero of="$1" bs=1 count=0 seek="$2" 2>/dev/null'
COPY_PROGRAM = r"""
from=$1; to=$2; shift 2
while [ $# -ge 3 ]; do
  tail -c "+$1" < "$from" | head -c "$2" >> "$to" || exit 1
  [ "$3" -eq 0 ] || head -c "$3" /dev/zero >> "$to" || exit 1
  shift 3
done
"""
ENDED_PROGRAM = 'test -f "$1.exit" || exit 1; echo "exit status $(cat "$1.exit")"; tail -n 40 -- "$1.log"'
# What a shell tells of a signal that ended a program: those leave no line in the log of the program.
ENDINGS = {
    "exit status 132": "this llama.cpp was built for a newer processor; install one that is built for this one",
    "exit status 137": "it was killed, as a system does that runs out of memory",
    "exit status 139": "it crashed with a segmentation fault",
}
RANGES_AT_ONCE = 300


@dataclass(frozen=True)
class Station:
    """One running server: a slice of `blocks` blocks in one pool."""

    pool: str
    blocks: int
    server: LlamaServer
    vocabulary: int


async def put_hollow(connection: Connection, path: str, plan: SlicePlan) -> None:
    """Send the header alone; tensor data is a hole of the right length."""
    await connection.write_file(path, plan.header, timeout_seconds=600.0)
    done = await connection.run(["/bin/sh", "-c", SPARSE_PROGRAM, "sh", path, str(plan.file_bytes)])
    if not done.succeeded:
        raise RemoteError(
            f"a sparse file could not be made on {connection.name}: {done.stderr.strip()[-200:]}"
        )


async def put_real(connection: Connection, path: str, plan: SlicePlan, shards: Sequence[str]) -> None:
    """Cut the slice from the model file that the device has."""
    await connection.write_file(path, plan.header, timeout_seconds=600.0)
    ranges = joined_ranges(plan)
    for start in range(0, len(ranges), RANGES_AT_ONCE):
        for shard, source in enumerate(shards):
            chosen = [part for part in ranges[start : start + RANGES_AT_ONCE] if part.shard == shard]
            numbers = [str(n) for part in chosen for n in (part.start + 1, part.length, part.padding)]
            if not numbers:
                continue
            done = await connection.script(COPY_PROGRAM, [source, path, *numbers], timeout_seconds=1800.0)
            if not done.succeeded:
                raise RemoteError(
                    f"the slice could not be cut on {connection.name}: {done.stderr.strip()[-200:]}"
                )


class EndedWithoutCause(UpstreamError):
    """A server ended and its log does not say why: another start may tell."""


@asynccontextmanager
async def stations(
    connection: Connection, folder: str, launches: Sequence[Launch], vocabulary: int, start: Start
) -> AsyncIterator[list[Station]]:
    """The servers, started and ready to be timed."""
    async with AsyncExitStack() as stack:
        await start(launches)
        ready = []
        for launch in launches:
            port = await stack.enter_async_context(connection.tunnel(launch.port))
            server = await stack.enter_async_context(open_server(port))
            await _load(connection, folder, launch, server, start)
            ready.append(Station(launch.bench.pool, launch.blocks, server, vocabulary))
        yield ready


async def time_round(station: Station, grid: Grid, number: int, done: Callable[[], None]) -> list[Timing]:
    """Every cell of the grid once on one server."""
    found = []
    count = grid.decode_tokens
    for batch in grid.micro_batches:
        seconds = await _step_seconds(station, batch, SHALLOW_TOKENS, count)
        found.append(Timing(DECODE, station.pool, station.blocks, batch, seconds, number))
        count = grid.steps(seconds)
        done()
    for batch in grid.deep_micro_batches:
        seconds = await _step_seconds(station, batch, grid.deep_tokens, count)
        found.append(Timing(DEEP, station.pool, station.blocks, batch, seconds, number, grid.deep_tokens))
        count = grid.steps(seconds)
        done()
    for length in grid.prompts:
        found.append(await _prefill(station, length, number))
        done()
    return found


async def warm_up(station: Station, grid: Grid) -> None:
    """The first pass pays for page faults and weight repacking: it is not counted."""
    await _prefill(station, min(grid.prompts), 0)


async def _prefill(station: Station, length: int, number: int) -> Timing:
    tokens = [_token(station, number * 977 + index) for index in range(length)]
    timings = await station.server.prefill(tokens, 0, keep=False, timeout_seconds=CALL_SECONDS)
    if timings.prompt_tokens < length - 1:
        raise UpstreamError(
            f"{timings.prompt_tokens} of {length} prompt tokens were processed: the rest was cached"
        )
    return Timing(PREFILL, station.pool, station.blocks, length, timings.prompt_seconds, number)


async def _step_seconds(station: Station, batch: int, mean_tokens: int, count: int) -> float:
    """Lower quartile of the steps while `batch` slots decode together: what else runs there only adds time.

    A shallow slice decodes more tokens than a deep one in its time; both have `mean_tokens` in the cache on average.
    """
    context_tokens = mean_tokens - count // 2
    prompts = [
        [_token(station, slot * 31 + index) for index in range(context_tokens)] for slot in range(batch)
    ]
    for slot, prompt in enumerate(prompts):
        await station.server.prefill(prompt, slot, keep=True, timeout_seconds=CALL_SECONDS)
    calls = (
        station.server.decode_step_seconds(prompt, slot, count, timeout_seconds=CALL_SECONDS)
        for slot, prompt in enumerate(prompts)
    )
    steps = [step for slot_steps in await asyncio.gather(*calls) for step in _together(slot_steps)]
    if not steps:
        raise UpstreamError(f"no decode step was timed with {batch} slots")
    return sorted(steps)[len(steps) // 4]


def _together(steps: list[float]) -> list[float]:
    """Without the first and last steps, in which other slots had not begun or had ended."""
    ends = max(len(steps) // 8, 1)
    return steps[ends:-ends] or steps


def _token(station: Station, number: int) -> int:
    usual = max(station.vocabulary - FIRST_TOKEN - 1, 1)
    return min(FIRST_TOKEN, station.vocabulary - 1) + number * 7 % min(usual, 5000)


def not_started(blocks: int, log: str) -> UpstreamError:
    """The signal or the line of the log that names the cause, and below it the log with its lines whole."""
    lines = [line for line in log.splitlines() if line.strip()]
    status, *said = lines
    named = [line for line in said if "error" in line.lower()] or said[-1:]
    is_told = status in ENDINGS or has_complaint("\n".join(said))
    reason = ENDINGS.get(status) or (
        named[0].strip() if is_told else f"{status}, and its log does not say why"
    )
    cause = f"llama-server did not start with a slice of {counted(blocks, 'block')}: {reason}"
    kind = UpstreamError if is_told else EndedWithoutCause
    return kind("\n".join([cause, *lines]))


async def _load(
    connection: Connection, folder: str, launch: Launch, server: LlamaServer, start: Start
) -> None:
    """Wait until a server has its slice; one that ended without a cause is started once more."""
    try:
        await _wait_ready(connection, folder, launch, server)
    except EndedWithoutCause:
        again = replace(launch, name=f"{launch.name}-again")
        await start([again])
        await _wait_ready(connection, folder, again, server)


async def _wait_ready(connection: Connection, folder: str, launch: Launch, server: LlamaServer) -> None:
    end = asyncio.get_running_loop().time() + START_SECONDS
    while await server.health() != Health.READY:
        await asyncio.sleep(0.05)
        ended = await connection.run(["/bin/sh", "-c", ENDED_PROGRAM, "sh", f"{folder}/{launch.name}"])
        if ended.succeeded:
            raise not_started(launch.blocks, ended.stdout)
        if asyncio.get_running_loop().time() > end:
            raise UpstreamError(f"llama-server did not load a slice within {START_SECONDS:g} s")

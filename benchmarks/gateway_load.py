"""The gateway under load, against the targets of its design: what it adds, what it refuses, what it leaves behind.

    python -m benchmarks.gateway_load [first whole streams overload balance soak] [--seconds 60] [--write]

Without --seconds each run lasts as long as its target asks for: ten minutes of streams, a minute of overload, half an
hour of soak. --write replaces the rows of the targets that were run. Requests are sent on a fixed schedule and timed
from the moment at which they should have been sent, so that a stall shows. The gateway has one core, the client and
the scripted replicas have the other.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import operator
import os
import random
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import uvloop

from benchmarks.gateway import (
    ADDRESS,
    RESULTS,
    Result,
    free_port,
    percentile,
    process,
    streams,
    upstream_argv,
)
from benchmarks.report import read_part, write_part

PART = "gateway-load"
HEAD = "| load | wanted | reached | load average | |\n|---|---|---|---|---|\n"
SETTLE_SECONDS = 3.0
REPLICA = re.compile(rb'"decode_replica":"(\w+)"')


@dataclass(frozen=True)
class Row:
    target: str
    wanted: str
    reached: str
    is_met: bool
    load_average: float = 0.0

    def line(self) -> str:
        met = "met" if self.is_met else "missed"
        return f"| {self.target} | {self.wanted} | {self.reached} | {self.load_average:.1f} | {met} |"


@dataclass(frozen=True)
class Fleet:
    """A gateway with its replicas."""

    port: int
    pid: int
    replica_ports: tuple[int, ...]

    def resident_bytes(self) -> int:
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def handles(self) -> tuple[int, int]:
        """Open files and threads."""
        files, threads = (
            sum(1 for _ in Path(f"/proc/{self.pid}/{kind}").iterdir()) for kind in ("fd", "task")
        )
        return files, threads


@contextmanager
def fleet(slots: int, slownesses: tuple[float, ...] = (1.0,)) -> Iterator[Fleet]:
    ports = [free_port() for _ in slownesses]
    with ExitStack() as started:
        for port, slowness in zip(ports, slownesses, strict=True):
            pin(started.enter_context(process(upstream_argv(port, slowness), port)), core=-1)
        port = free_port()
        argv = [sys.executable, "-m", "benchmarks.bare_gateway", str(port), str(slots), *map(str, ports)]
        pid = started.enter_context(process(argv, port))
        pin(pid, core=0)
        uvloop.run(streams(port, 8, 3, 100.0))
        yield Fleet(port, pid, tuple(ports))


def pin(pid: int, core: int) -> None:
    os.sched_setaffinity(pid, {sorted(os.sched_getaffinity(0))[core]})


@dataclass(frozen=True)
class Answered:
    status: int
    seconds: float
    first_seconds: float
    ended: float
    replica: str
    may_retry: bool


class Asker(asyncio.Protocol):
    """Asks once and collects the answer until the connection closes."""

    def __init__(self, request: bytes, due: float) -> None:
        self.request, self.due = request, due
        self.received = b""
        self.first: float | None = None
        self.done: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.received += data
        if self.first is None and b"data:" in data:
            self.first = time.monotonic()
        if b"[DONE]" in data:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        now = time.monotonic()
        status = int(self.received[9:12] or b"0")
        replica = REPLICA.search(self.received)
        named = replica[1].decode() if replica else ""
        may_retry = b"retry-after:" in self.received.lower()
        self.done.set_result(
            Answered(status, now - self.due, (self.first or now) - self.due, now, named, may_retry)
        )


def request(events: int, rate: float, is_stream: bool = False) -> bytes:
    body = {
        "model": "bench",
        "stream": is_stream,
        "max_tokens": 16,
        "messages": [{"role": "user", "content": json.dumps([events, rate, 0.0])}],
    }
    content = json.dumps(body).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {ADDRESS}\r\nAuthorization: Bearer k\r\nX-E2LLM-Timing: 1\r\n"
        f"Connection: close\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


async def ask(port: int, content: bytes, due: float, leaves_after: float | None = None) -> Answered:
    loop = asyncio.get_running_loop()
    transport, asker = await loop.create_connection(lambda: Asker(content, due), ADDRESS, port)
    if leaves_after is not None:
        loop.call_later(leaves_after, transport.abort)
    return await asker.done


async def offer(
    port: int, per_second: float, seconds: float, content: bytes, leaving_share: float = 0.0
) -> list[Answered]:
    """Open loop: each request at its time, whatever became of those before."""
    began = time.monotonic()
    tasks = []
    for number in range(int(per_second * seconds)):
        due = began + number / per_second
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        leaves_after = random.uniform(0.0, 0.4) if random.random() < leaving_share else None
        tasks.append(asyncio.create_task(ask(port, content, due, leaves_after)))
    return list(await asyncio.gather(*tasks))


async def counters(port: int) -> float:
    """The sum of what the gateway says is waiting and running."""
    reader, writer = await asyncio.open_connection(ADDRESS, port)
    writer.write(
        f"GET /metrics HTTP/1.1\r\nHost: {ADDRESS}\r\nAuthorization: Bearer k\r\nConnection: close\r\n\r\n".encode()
    )
    text = (await reader.read()).decode()
    writer.close()
    lines = re.findall(r"^e2llm_(?:waiting|running)_requests\{.*\} ([\d.]+)$", text, re.MULTILINE)
    assert lines, "the gateway shows its counters"
    return sum(map(float, lines))


def first(seconds: float) -> list[Row]:
    """Streams of two seconds, 25 begun a second: direct and through the gateway in turn, three times each."""
    content = request(40, 20.0, is_stream=True)
    direct: list[list[float]] = []
    ours: list[list[float]] = []
    with fleet(256) as one:
        for _ in range(3):
            for port, found in ((one.replica_ports[0], direct), (one.port, ours)):
                answers = uvloop.run(offer(port, 25.0, seconds / 6, content))
                found.append([answer.first_seconds for answer in answers])
    limits = {0.5: 3.0, 0.95: 10.0, 0.99: 25.0}
    added = [median_of(ours, share) - median_of(direct, share) for share in limits]
    reached = ", ".join(f"{milliseconds:.1f}" for milliseconds in added)
    met = all(map(operator.le, added, limits.values()))
    name = "L1: added time to first token, 50 streams, p50, p95, p99"
    return [Row(name, "3, 10, 25 ms", f"{reached} ms", met)]


def median_of(rounds: list[list[float]], share: float) -> float:
    return statistics.median(percentile(values, share) for values in rounds)


def whole(seconds: float) -> list[Row]:
    with fleet(256) as one:
        answers = uvloop.run(offer(one.port, 150.0, seconds, request(6, 100.0)))
    bad = sum(answer.status != 200 for answer in answers)
    slowest = percentile([answer.seconds for answer in answers], 0.99)
    reached = f"{bad} not 200, p99 {slowest:.0f} ms"
    return [
        Row(
            "L2: whole answers of 60 ms, 150 a second",
            "0 not 200, p99 100 ms",
            reached,
            not bad and slowest <= 100,
        )
    ]


async def grown(one: Fleet, seconds: float) -> tuple[Result, float]:
    """The result of 200 streams, and by how much the gateway's memory grew after the first sixth."""
    running = asyncio.create_task(streams(one.port, 200, int(20 * seconds), 20.0))
    await asyncio.sleep(seconds / 6)
    before = one.resident_bytes()
    await asyncio.sleep(seconds * 4 / 6)
    growth = one.resident_bytes() / before - 1
    return await running, growth


def many_streams(seconds: float) -> list[Row]:
    with fleet(256) as one:
        direct = uvloop.run(streams(one.replica_ports[0], 200, int(20 * min(seconds, 60.0)), 20.0))
        ours, growth = uvloop.run(grown(one, seconds))
    slower = percentile(ours.ages, 0.99) - percentile(direct.ages, 0.99)
    reached = f"{slower:.1f} ms, {growth:+.1%}, {ours.lost} lost of {ours.events}"
    met = slower <= 20 and growth <= 0.1 and not ours.lost
    return [
        Row(
            f"L3: 200 streams of 20 events/s, {seconds:g} s: added p99 per event, memory",
            "20 ms, +10%, 0 lost",
            reached,
            met,
        )
    ]


def overload(seconds: float) -> list[Row]:
    """Nine slots of 60 ms make 150 answers a second; three times as many are wanted."""
    content = request(6, 100.0)
    with fleet(9) as one:
        answers = uvloop.run(offer(one.port, 450.0, seconds, content))
        refused = [answer for answer in answers if answer.status == 503]
        served = [answer for answer in answers if answer.status == 200]
        after = uvloop.run(offer(one.port, 100.0, 5.0, content))
    rate = len(served) / (max(answer.ended for answer in answers) - min(a.ended - a.seconds for a in answers))
    refusal = percentile([answer.seconds for answer in refused], 0.99)
    wait = percentile([answer.seconds for answer in served], 0.99)
    recovered = all(answer.status == 200 for answer in after)
    others = len(answers) - len(refused) - len(served)
    reached = f"refusals {refusal:.0f} ms, {rate:.0f} served/s with p99 {wait:.0f} ms, {others} failed"
    met = refusal <= 50 and rate >= 135 and wait <= 60_000 and recovered and not others
    met = met and all(answer.may_retry for answer in refused)
    wanted = "refusals p99 50 ms with Retry-After, 135 served/s, 5 s later all served"
    return [Row(f"L4: three times what nine slots can do, {seconds:g} s", wanted, reached, met)]


async def closed(port: int, count: int, concurrent: int) -> Counter[str]:
    gate = asyncio.Semaphore(concurrent)
    content = request(3, 100.0)

    async def one() -> str:
        async with gate:
            return (await ask(port, content, time.monotonic())).replica

    return Counter(await asyncio.gather(*(one() for _ in range(count))))


def balance(seconds: float) -> list[Row]:
    count = int(seconds * 250)
    with fleet(4, (1.0, 1.0, 1.0, 1.0)) as one:
        equal = uvloop.run(closed(one.port, count, 12))
        left = uvloop.run(counters(one.port))
    with fleet(4, (1.0, 1.0, 1.0, 3.0)) as one:
        unequal = uvloop.run(closed(one.port, count, 32))
        left += uvloop.run(counters(one.port))
    ratio = max(equal.values()) / min(equal.values())
    share = unequal["M4"] / count
    even = Row(
        f"L5: {count} requests over four equal replicas, most to least", "1.1", f"{ratio:.2f}", ratio <= 1.1
    )
    slow = Row(
        "L5: one of the four three times slower, all busy: its share; counters afterwards",
        "10% of the requests +-15%, 0",
        f"{share:.1%}, {left:g}",
        0.085 <= share <= 0.115 and not left,
    )
    return [even, slow]


def soak(seconds: float) -> list[Row]:
    """Streams, every third client leaves at any moment from the connection on; memory is what the second half adds."""
    content = request(30, 100.0, is_stream=True)
    with fleet(32) as one:
        before = one.handles()
        answers = uvloop.run(offer(one.port, 40.0, seconds / 2, content, 1 / 3))
        resident = one.resident_bytes()
        answers += uvloop.run(offer(one.port, 40.0, seconds / 2, content, 1 / 3))
        time.sleep(SETTLE_SECONDS)
        growth = one.resident_bytes() / resident - 1
        left = uvloop.run(counters(one.port))
        after = one.handles()
    handles = f"{before[0]} -> {after[0]} files, {before[1]} -> {after[1]} threads"
    return [
        Row(
            f"L10: {len(answers)} streams in {seconds:g} s, a third abandoned",
            "all back to where they were",
            f"{handles}, counters {left:g}, memory {growth:+.1%}",
            after[0] <= before[0] and after[1] <= before[1] and not left,
        )
    ]


@dataclass(frozen=True)
class Run:
    """A load, and the seconds that its target asks for."""

    rows: Callable[[float], list[Row]]
    seconds: float


RUNS = {
    "first": Run(first, 60.0),
    "whole": Run(whole, 60.0),
    "streams": Run(many_streams, 600.0),
    "overload": Run(overload, 60.0),
    "balance": Run(balance, 40.0),
    "soak": Run(soak, 1800.0),
}


def measured(run: Run, seconds: float) -> list[Row]:
    """The rows with the load average of the machine at their end."""
    return [replace(row, load_average=os.getloadavg()[0]) for row in run.rows(seconds)]


def number(line: str) -> int:
    found = re.match(r"\| L(\d+):", line)
    assert found, "a row begins with the number of its target"
    return int(found[1])


def merged(lines: list[str]) -> str:
    """The table of the results file with these lines in place of those of the same targets."""
    new = set(map(number, lines))
    old = [line for line in read_part(RESULTS, PART).splitlines() if line.startswith("| L")]
    kept = [line for line in old if number(line) not in new]
    return HEAD + "\n".join(sorted(kept + lines, key=number))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs="*", metavar="RUN", help="all of them when none is named")
    parser.add_argument("--seconds", type=float, help="shorter than the targets ask for")
    parser.add_argument("--write", action="store_true", help="write the table into docs/results.md")
    given = parser.parse_args()
    pin(0, core=-1)
    lines = []
    for name in given.runs or RUNS:
        found = [row.line() for row in measured(RUNS[name], given.seconds or RUNS[name].seconds)]
        print(*found, sep="\n", flush=True)
        lines += found
    if given.write:
        write_part(RESULTS, PART, merged(lines))


if __name__ == "__main__":
    main()

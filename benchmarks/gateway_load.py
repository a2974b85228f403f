"""The gateway under load, against the targets of its design: what it adds, what it refuses, what it leaves behind.

    python -m benchmarks.gateway_load [first whole streams overload balance soak] [--seconds 60] [--write]

Requests are sent on a fixed schedule and timed from the moment at which they should have been sent, so that a stall
shows. The gateway has one core, the client and the scripted replicas have the other.
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
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import uvloop

from benchmarks.gateway import ADDRESS, ROOT, Result, free_port, percentile, process, streams
from benchmarks.report import write_part

RESULTS = ROOT / "docs" / "results.md"
SETTLE_SECONDS = 3.0
REPLICA = re.compile(rb'"decode_replica":"(\w+)"')


@dataclass(frozen=True)
class Row:
    target: str
    wanted: str
    reached: str
    is_met: bool


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
    script = str(ROOT / "benchmarks" / "gateway.py")
    ports = [free_port() for _ in slownesses]
    with ExitStack() as started:
        for port, slowness in zip(ports, slownesses, strict=True):
            argv = [sys.executable, script, "--serve-upstream", str(port), "--slowness", str(slowness)]
            pin(started.enter_context(process(argv, port)), core=-1)
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
    """Streams of two seconds, 25 begun a second: direct and through the gateway in turn, three times."""
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
        answers = uvloop.run(offer(one.port, 150.0, seconds / 3, request(6, 100.0)))
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
        direct = uvloop.run(streams(one.replica_ports[0], 200, int(20 * seconds / 3), 20.0))
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
        answers = uvloop.run(offer(one.port, 450.0, seconds / 3, content))
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
    return [Row(f"L4: three times what nine slots can do, {seconds / 3:g} s", wanted, reached, met)]


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
    """Every third client leaves, at any moment from the connection on."""
    with fleet(32) as one:
        before = one.handles()
        answers = uvloop.run(offer(one.port, 40.0, seconds, request(30, 100.0, is_stream=True), 1 / 3))
        time.sleep(SETTLE_SECONDS)
        left = uvloop.run(counters(one.port))
        after = one.handles()
    reached = f"{before[0]} -> {after[0]} files, {before[1]} -> {after[1]} threads, counters {left:g}"
    met = after[0] <= before[0] and after[1] <= before[1] and not left
    return [
        Row(
            f"L10: {len(answers)} streams in {seconds:g} s, a third abandoned",
            "all back to where they were",
            reached,
            met,
        )
    ]


RUNS = {
    "first": first,
    "whole": whole,
    "streams": many_streams,
    "overload": overload,
    "balance": balance,
    "soak": soak,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs="*", metavar="RUN", help="all of them when none is named")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--write", action="store_true", help="write the table into docs/results.md")
    given = parser.parse_args()
    pin(0, core=-1)
    rows = [row for name in given.runs or RUNS for row in RUNS[name](given.seconds)]
    table = "| load | wanted | reached | |\n|---|---|---|---|\n" + "".join(
        f"| {row.target} | {row.wanted} | {row.reached} | {'met' if row.is_met else 'missed'} |\n"
        for row in rows
    )
    print(table)
    if given.write:
        write_part(RESULTS, "gateway-load", table)


if __name__ == "__main__":
    main()

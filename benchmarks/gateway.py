"""The gateway against nginx and haproxy, in one run on one machine: CPU, latency and lost events.

    python -m benchmarks.gateway [--streams 256] [--rate 30] [--seconds 10] [--rounds 3] [--write]

A scripted upstream sends numbered, time-stamped events on a fixed schedule (open loop), a client reads them direct
and through each gateway in turn. CPU is what the gateway's processes used, divided by the events they passed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import httptools
import uvloop

from benchmarks.report import write_part

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results.md"
ADDRESS = "127.0.0.1"
SLOTS = 256
CONCURRENT_REQUESTS = 32
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNK = (
    'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"content":" %s"}}],"created":1796016867,'
    '"id":"chatcmpl-ABzd4FEOrTZrPojLHHjGGOg5NX51dMbm","model":"e2llm-0123456789ab","system_fingerprint":'
    '"b1-7e4c0a9","object":"chat.completion.chunk"}\n\n'
)
USAGE = (
    'data: {"choices":[],"model":"e2llm-0123456789ab","usage":{"completion_tokens":%d,"prompt_tokens":6}}\n\n'
)
HEADER = "| gateway | CPU us/{per} | x nginx | age p50 ms | p99 ms | first event p50 ms | p95 ms | lost |"
NGINX = """\
worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log; daemon off;
events {{ worker_connections 4096; }}
http {{ access_log off; client_body_temp_path {folder}/b; proxy_temp_path {folder}/p;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  upstream replicas {{ least_conn; server {address}:{upstream}; }}
  server {{ listen {address}:{port}; location / {{ proxy_pass http://replicas; proxy_http_version 1.1;
    proxy_buffering off; proxy_read_timeout 300s; }} }} }}
"""
HAPROXY = """\
global
  nbthread 1
  maxconn 8192
defaults
  mode http
  timeout connect 5s
  timeout client 300s
  timeout server 300s
frontend front
  bind {address}:{port}
  default_backend replicas
backend replicas
  balance leastconn
  server one {address}:{upstream}
"""


class Upstream(asyncio.Protocol):
    """Answers every request with as many events as its body asks for, at the rate it asks for."""

    slowness = 1.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self.received = b""

    def data_received(self, data: bytes) -> None:
        self.received += data
        head, found, body = self.received.partition(b"\r\n\r\n")
        if not found:
            return
        if head.startswith(b"GET /slots "):
            self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]")
            return
        length = next(
            int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")
        )
        if len(body) < length:
            return
        self.received = b""
        self.count, rate, *pause = json.loads(json.loads(body)["messages"][0]["content"])
        self.rate = rate / self.slowness
        self.sent = 0
        self.transport.write(HEAD)
        first = pause[0] if pause else random.random() / self.rate
        self.started = asyncio.get_running_loop().time() + first
        self._schedule()

    def _schedule(self) -> None:
        asyncio.get_running_loop().call_at(self.started + self.sent / self.rate, self._send)

    def _send(self) -> None:
        if self.transport.is_closing():
            return
        if self.sent < self.count:
            self._event(CHUNK % f"{self.sent}@{time.monotonic():.6f}@")
            self.sent += 1
            self._schedule()
        else:
            self._event((USAGE % self.count) + "data: [DONE]\n\n")
            self.transport.write(b"0\r\n\r\n")

    def _event(self, text: str) -> None:
        content = text.encode()
        self.transport.write(b"%x\r\n%b\r\n" % (len(content), content))


class Reader(asyncio.Protocol):
    """Reads one stream: counts its events, checks their order, and takes the age of each."""

    def __init__(self, body: bytes, ages: list[float], first: list[float]) -> None:
        self.body, self.ages, self.first = body, ages, first
        self.done = asyncio.get_running_loop().create_future()
        self.expected = 0
        self.rest = b""
        self.now = 0.0
        self.parser = httptools.HttpResponseParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self.asked = time.monotonic()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: {ADDRESS}\r\nAuthorization: Bearer k\r\n"
            f"Connection: close\r\nContent-Type: application/json\r\nContent-Length: {len(self.body)}\r\n\r\n"
        )
        self.transport.write(head.encode() + self.body)

    def data_received(self, data: bytes) -> None:
        self.now = time.monotonic()
        self.parser.feed_data(data)

    def on_body(self, piece: bytes) -> None:
        *whole, self.rest = (self.rest + piece).split(b"\n\n")
        for event in whole:
            parts = event.split(b"@")
            if len(parts) == 3:
                if not self.expected:
                    self.first.append(self.now - self.asked)
                assert int(parts[0].rpartition(b" ")[2]) == self.expected, "an event was lost or came twice"
                self.expected += 1
                self.ages.append(self.now - float(parts[1]))
            elif event.endswith(b"[DONE]"):
                self.transport.close()
                self.done.set_result(self.expected)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(-1)


@dataclass
class Result:
    events: int
    lost: int
    seconds: float
    cpu_seconds: float
    ages: list[float]
    first: list[float]


async def streams(port: int, streams: int, count: int, rate: float, concurrent: int = 10**6) -> Result:
    body = json.dumps(
        {
            "model": "bench",
            "stream": True,
            "max_tokens": 16,
            "messages": [{"role": "user", "content": json.dumps([count, rate])}],
        }
    ).encode()
    ages: list[float] = []
    first: list[float] = []
    gate = asyncio.Semaphore(concurrent)
    loop = asyncio.get_running_loop()

    async def one() -> int:
        async with gate:
            _, reader = await loop.create_connection(lambda: Reader(body, ages, first), ADDRESS, port)
            return int(await reader.done)

    began = time.monotonic()
    counts = await asyncio.gather(*(one() for _ in range(streams)))
    lost = sum(count - max(0, got) for got in counts)
    return Result(len(ages), lost, time.monotonic() - began, 0.0, ages, first)


def cpu_seconds(pids: list[int]) -> float:
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS_PER_SECOND


def family(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(one for child in children for one in family(int(child)))]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((ADDRESS, 0))
        return int(probe.getsockname()[1])


@contextmanager
def process(argv: list[str], port: int) -> Iterator[int]:
    child = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        for _ in range(200):
            if child.poll() is not None:
                raise SystemExit(f"{argv[0]} ended: {child.stderr.read().decode() if child.stderr else ''}")
            with socket.socket() as probe:
                if probe.connect_ex((ADDRESS, port)) == 0:
                    break
            time.sleep(0.05)
        yield child.pid
    finally:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(5)
        except subprocess.TimeoutExpired:
            child.kill()


def upstream_argv(port: int, slowness: float = 1.0) -> list[str]:
    argv = [sys.executable, "-m", "benchmarks.gateway", "--serve-upstream", str(port)]
    return [*argv, "--slowness", str(slowness)]


def serve_upstream(port: int, slowness: float) -> None:
    Upstream.slowness = slowness

    async def main() -> None:
        server = await asyncio.get_running_loop().create_server(Upstream, ADDRESS, port, backlog=1024)
        await server.serve_forever()

    uvloop.run(main())


@contextmanager
def gateway(name: str, upstream_port: int) -> Iterator[tuple[int, list[int]]]:
    """A gateway in front of the upstream: its port and its processes."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        values = {"folder": folder, "address": ADDRESS, "port": port, "upstream": upstream_port}
        config = Path(folder) / "config"
        if name == "direct":
            yield upstream_port, []
            return
        if name == "ours":
            argv = [
                sys.executable,
                "-m",
                "benchmarks.bare_gateway",
                str(port),
                str(SLOTS),
                str(upstream_port),
            ]
        elif name == "nginx":
            config.write_text(NGINX.format(**values))
            argv = ["nginx", "-c", str(config)]
        else:
            config.write_text(HAPROXY.format(**values))
            argv = ["haproxy", "-db", "-f", str(config)]
        with process(argv, port) as pid:
            time.sleep(0.3)
            yield port, family(pid)


def measure(
    name: str, upstream_port: int, count: int, events: int, rate: float, concurrent: int = 10**6
) -> Result:
    with gateway(name, upstream_port) as (port, pids):
        uvloop.run(streams(port, min(count, 8), 3, 100.0))
        before = cpu_seconds(pids)
        result = uvloop.run(streams(port, count, events, rate, concurrent))
        result.cpu_seconds = cpu_seconds(pids) - before
        return result


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1000 if ordered else float("nan")


def table(title: str, results: dict[str, list[Result]], per: str, count: int) -> str:
    def cost(result: Result) -> float:
        return result.cpu_seconds / (result.events if per == "event" else count) * 1e6

    def middle(name: str, value: Callable[[Result], float]) -> float:
        return statistics.median(value(result) for result in results[name])

    base = middle("nginx", cost) if "nginx" in results else float("nan")
    lines = [title, "", HEADER.format(per=per), "|---|---|---|---|---|---|---|---|"]
    for name in results:
        cells = [
            f"{middle(name, cost):.1f}",
            f"{middle(name, cost) / base:.2f}",
            f"{middle(name, lambda result: percentile(result.ages, 0.5)):.2f}",
            f"{middle(name, lambda result: percentile(result.ages, 0.99)):.1f}",
            f"{middle(name, lambda result: percentile(result.first, 0.5)):.1f}",
            f"{middle(name, lambda result: percentile(result.first, 0.95)):.1f}",
            str(sum(result.lost for result in results[name])),
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def loads_text(loads: list[float]) -> str:
    """Events that wait together pass together: on a busy machine the gateway looks better than it is."""
    return f"Load average during the rounds: {min(loads):.1f} to {max(loads):.1f}.\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--rate", type=float, default=30.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="write the tables into docs/results.md")
    parser.add_argument("--serve-upstream", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--slowness", type=float, default=1.0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve_upstream:
        return serve_upstream(given.serve_upstream, given.slowness)
    names = ["direct", "ours", *(name for name in ("nginx", "haproxy") if shutil.which(name))]
    long: dict[str, list[Result]] = {name: [] for name in names}
    short: dict[str, list[Result]] = {name: [] for name in names}
    loads: list[float] = []
    port = free_port()
    with process(upstream_argv(port), port):
        for number in range(given.rounds):
            order = names if number % 2 == 0 else names[::-1]
            for name in order:
                events = int(given.rate * given.seconds)
                long[name].append(measure(name, port, given.streams, events, given.rate))
                loads.append(os.getloadavg()[0])
                short[name].append(measure(name, port, given.requests, 3, 300.0, CONCURRENT_REQUESTS))
    title = f"{given.streams} streams x {given.rate:g} events/s, medians of {given.rounds}"
    short_title = f"{given.requests} short answers, {CONCURRENT_REQUESTS} at once"
    parts = [
        table(title, long, "event", given.streams),
        table(short_title, short, "request", given.requests),
        loads_text(loads),
    ]
    print(*parts, sep="\n")
    if given.write:
        write_part(RESULTS, "gateway", "\n".join(parts))
    return None


if __name__ == "__main__":
    main()

"""Measures every pair of devices: a short-lived listener on one, a client on the other, no device in two pairs."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from time import perf_counter

from django.utils import timezone

from inventory.core.link_matrix import (
    LinkError,
    Measured,
    estimate,
    of_repeats,
    parse_measurement,
    parse_round_trip,
    rounds,
)
from inventory.links import iperf
from inventory.links.programs import LANGUAGES
from inventory.models import Device, Link
from inventory.probe import free_port
from inventory.remote import Completed, Connection, RemoteError, connect
from jobs.core.errors import JobFailed
from jobs.progress import Progress

PAIR_SECONDS = 45.0
ESTIMATE_BYTES = 4 * 1024 * 1024
ESTIMATED = "estimated from the rates to the dashboard"


@dataclass(frozen=True)
class Finding:
    source: Device
    target: Device
    measured: Measured
    method: str


def measure_links(devices: Sequence[Device], progress: Progress) -> list[Link]:
    """Measure all pairs of `devices` in both directions and save them; devices that do not answer are left out."""
    findings = asyncio.run(_measure(devices, progress))
    now = timezone.now()
    links = []
    for finding in findings:
        values = {
            "bytes_per_second": finding.measured.bytes_per_second,
            "latency_seconds": finding.measured.latency_seconds,
            "spread": finding.measured.spread,
            "method": finding.method,
            "measured_at": now,
        }
        link, _ = Link.objects.update_or_create(source=finding.source, target=finding.target, defaults=values)
        links.append(link)
    return links


async def _measure(devices: Sequence[Device], progress: Progress) -> list[Finding]:
    async with AsyncExitStack() as stack:
        opened = await asyncio.gather(*(_open(stack, device, progress) for device in devices))
        reachable = [item for item in opened if item is not None]
        if len(reachable) < 2:
            raise JobFailed(f"Links need two devices that answer; {len(reachable)} of {len(devices)} did.")
        return await _rounds(reachable, progress)


async def _open(
    stack: AsyncExitStack, device: Device, progress: Progress
) -> tuple[Device, Connection] | None:
    try:
        return device, await stack.enter_async_context(connect(device))
    except RemoteError as error:
        progress.log(f"{device.name} is left out: {error}")
        return None


async def _rounds(reachable: list[tuple[Device, Connection]], progress: Progress) -> list[Finding]:
    schedule = rounds(len(reachable))
    findings: list[Finding] = []
    began = perf_counter()
    for number, pairs in enumerate(schedule):
        progress.check()
        remaining = (perf_counter() - began) / number * (len(schedule) - number) if number else None
        progress.report(f"Round {number + 1} of {len(schedule)}", number / len(schedule), remaining)
        found = await asyncio.gather(*(_pair(reachable[one], reachable[two], progress) for one, two in pairs))
        findings.extend(finding for pair in found for finding in pair)
    return findings


async def _pair(
    first: tuple[Device, Connection], second: tuple[Device, Connection], progress: Progress
) -> list[Finding]:
    """Both directions of one pair; if the first cannot be reached by the second, the roles change."""
    reasons = []
    for server, client in ((first, second), (second, first)):
        try:
            upload, download, way = await _between(server, client, progress)
        except (RemoteError, LinkError) as error:
            reasons.append(str(error))
            continue
        method = f"{way} between the hosts, listener on {server[0].name}"
        findings = [
            Finding(client[0], server[0], upload, method),
            Finding(server[0], client[0], download, method),
        ]
        progress.log("; ".join(_words(finding) for finding in findings))
        return findings
    names = f"{first[0].name} and {second[0].name}"
    progress.log(
        f"{names} do not reach each other ({reasons[-1]}); estimating from their rates to the dashboard."
    )
    return await _estimated(first, second, progress)


async def _between(
    server: tuple[Device, Connection], client: tuple[Device, Connection], progress: Progress
) -> tuple[Measured, Measured, str]:
    """Upload, download and what measured them: iperf3 where both hosts have it, else what every host has.

    The round trip is always our own program's, since iperf3 tells only that of a full line.
    """
    address = server[0].address
    if address is None:
        raise RemoteError(f"{server[0].name} has no IPv4 address for other devices")
    if all(iperf.TOOL in device.hardware.get("tools", []) for device, _ in (server, client)):
        latency = parse_round_trip(await _own(server, client, "ping"))
        try:
            upload, download = await iperf.rates(server[1], address, client[1])
        except (RemoteError, LinkError) as error:
            names = f"{client[0].name} and {server[0].name}"
            progress.log(f"iperf3 is on {names} but did not work ({error}); measured with our own program.")
        else:
            return of_repeats(upload, latency), of_repeats(download, latency), iperf.TOOL
    return *parse_measurement(await _own(server, client, "measure")), "TCP"


async def _own(server: tuple[Device, Connection], client: tuple[Device, Connection], role: str) -> str:
    """What our own program prints on the client; "ping" leaves the transfers out."""
    port = await free_port(server[1])
    args = [str(server[0].address), str(port), secrets.token_hex(16), f"{PAIR_SECONDS:g}"]
    listening = asyncio.create_task(_run(server, "listen", args))
    try:
        done = await _run(client, role, args)
    finally:
        listening.cancel()
        await asyncio.wait([listening])
    if not done.succeeded:
        raise LinkError(done.stderr.strip()[-200:] or f"exit status {done.exit_status}")
    return done.stdout


async def _run(side: tuple[Device, Connection], role: str, args: list[str]) -> Completed:
    device, connection = side
    tools = device.hardware.get("tools", [])
    language = next((name for name in LANGUAGES if name in tools), None)
    if language is None:
        raise LinkError(f"{device.name} has neither python3 nor perl")
    return await connection.run([*LANGUAGES[language], role, *args], timeout_seconds=PAIR_SECONDS)


async def _estimated(
    first: tuple[Device, Connection], second: tuple[Device, Connection], progress: Progress
) -> list[Finding]:
    try:
        rates = [await _dashboard_rate(connection) for _, connection in (first, second)]
    except RemoteError as error:
        progress.log(f"no estimate either: {error}")
        return []
    rate = estimate([rates[0][0]], [rates[1][0]])
    measured = Measured(rate, rates[0][1] + rates[1][1], 0.0)
    return [
        Finding(first[0], second[0], measured, ESTIMATED),
        Finding(second[0], first[0], measured, ESTIMATED),
    ]


async def _dashboard_rate(connection: Connection) -> tuple[float, float]:
    """Bytes per second from the dashboard to a device, and its round-trip time, over SSH."""
    began = perf_counter()
    await connection.run(["true"])
    latency = perf_counter() - began
    began = perf_counter()
    await connection.run(["sh", "-c", "cat > /dev/null"], stdin=bytes(ESTIMATE_BYTES), timeout_seconds=120.0)
    return ESTIMATE_BYTES / max(perf_counter() - began - latency, 1e-3), latency


def _words(finding: Finding) -> str:
    measured = finding.measured
    return (
        f"{finding.source.name} → {finding.target.name}: {measured.bytes_per_second * 8 / 1e6:,.0f} Mb/s, "
        f"{measured.latency_seconds * 1000:.2f} ms there and back"
    )

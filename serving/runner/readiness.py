"""Is a started replica really the plan: loaded, every device in use, slots as long as planned, answering."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from typing import Any

from inventory import upstream
from inventory.core.quantities import bytes_text
from inventory.upstream import Health, LlamaServer
from jobs.core.errors import JobFailed
from serving.core import loadlog, startup
from serving.core.commands import LOG_FILE
from serving.core.loading import STILL_MOVING_SECONDS, Holding, Loading
from serving.models import ManagedProcess
from serving.processes import lifecycle, observe
from serving.runner import states
from serving.runner.fleet import Fleet, Loaded, check_key, load_key, run_in_database
from serving.runner.replica import Unit, ended, is_running

LOOK_SECONDS = 0.5
LOG_LOOKS = 10
PROBE_SECONDS = 60.0


async def wait_until_loaded(fleet: Fleet, unit: Unit) -> None:
    key = load_key(unit.replica)
    fleet.progress.start_step(key)
    loading = expected_load(unit)
    async with upstream.open_server(
        unit.replica.port or 0, unit.replica.api_key, host=unit.replica.host or ""
    ) as server:
        while await server.health() != Health.READY:
            fleet.progress.check()
            holdings = await held(fleet, unit)
            now = time.monotonic()
            loading.see(holdings, now)
            if loading.is_over(now):
                raise too_slow(unit, loading, now)
            report(fleet, unit, loading, now)
            await asyncio.sleep(LOOK_SECONDS)
        await check_identity(fleet, unit, server)
    fleet.loaded[unit.replica.pk] = Loaded(loading.total_bytes, loading.total_bytes, 0.0, is_seen=True)
    report_all(fleet)
    fleet.progress.end_step(key, f"{time.monotonic() - loading.began:.0f} s")


def expected_load(unit: Unit) -> Loading:
    """Bytes to be held in the end, and the time that disk and links need for the weights among them."""
    cluster, now = unit.deployment.cluster, time.monotonic()
    block_bytes = cluster["model"]["block_bytes"]
    stages = unit.plan["stages"]
    blocks = {stage["device"]: stage["gpu_blocks"] + stage["cpu_blocks"] for stage in stages}
    sent_bytes = block_bytes * sum(count for name, count in blocks.items() if name in unit.workers)
    weight_bytes = block_bytes * sum(blocks.values()) + cluster["model"]["output_bytes"]
    held_bytes = int(sum(stage["gpu_bytes"] + stage["ram_bytes"] for stage in stages))
    pairs = [pair["bytes_per_second"] for pair in cluster["links"].get("pairs", [])]
    slowest = min([*pairs, cluster["links"]["default"]["bytes_per_second"]])
    deadline = startup.load_deadline_seconds(weight_bytes, sent_bytes, slowest)
    return Loading(held_bytes, deadline, began=now, moved_at=now)


async def held(fleet: Fleet, unit: Unit) -> list[Holding]:
    """What the processes of the replica hold; an error when one of them has ended."""
    stages = {stage["device"]: stage for stage in unit.plan["stages"]}

    async def one(name: str) -> Holding:
        process, device = unit.processes[name], unit.devices[name]
        connection, stage = fleet.connection(device), stages[name]
        seen = await observe.observe(connection)
        if not is_running(process, seen):
            raise await ended(fleet, unit, name)
        resident_bytes = sum(
            found.resident_bytes for found in seen.processes if found.marker == process.marker
        )
        if device.main_pool != "gpu":
            return Holding(resident_bytes, stage["gpu_bytes"] + stage["ram_bytes"])
        assert process.pid is not None, "started"
        port = process.port if process.kind == ManagedProcess.Kinds.WORKER else None
        on_gpu = await observe.on_gpu(connection, process.pid, port)
        return Holding(
            resident_bytes, stage["ram_bytes"], stage["gpu_bytes"], on_gpu.video_bytes, on_gpu.received_bytes
        )

    # The master last: when a worker dies the master follows, and the worker's log holds the cause.
    return [await one(name) for name in [*unit.workers, unit.master_name]]


def expect(fleet: Fleet, unit: Unit) -> None:
    """Count what this replica will hold from the start, so that the bar of all does not fall when its load begins."""
    fleet.loaded[unit.replica.pk] = Loaded(0, expected_load(unit).total_bytes, None, is_seen=True)


def report(fleet: Fleet, unit: Unit, loading: Loading, now: float) -> None:
    """The checklist line of this replica, and the bar of all replicas that load at the same time."""
    done = min(loading.held_bytes, loading.total_bytes)
    text = f"{bytes_text(done)} of about {bytes_text(loading.total_bytes)}"
    if not loading.is_seen:
        text = (
            f"{now - loading.began:.0f} s, of up to {loading.deadline_seconds:.0f} s that links and disk need; "
            "how full its GPU is cannot be seen"
        )
    fleet.progress.start_step(load_key(unit.replica), text)
    fleet.loaded[unit.replica.pk] = Loaded(
        done, loading.total_bytes, loading.remaining_seconds(now), is_seen=loading.is_seen
    )
    report_all(fleet)


def report_all(fleet: Fleet) -> None:
    """The slowest replica decides how long it still takes; while one cannot be judged, nothing is foretold."""
    loaded = fleet.loaded.values()
    if not all(one.is_seen for one in loaded):
        fleet.progress.report("Loading the model; how far it is cannot be seen")
        return
    held, wanted = sum(one.held_bytes for one in loaded), sum(one.total_bytes for one in loaded)
    known = [one.remaining_seconds for one in loaded if one.remaining_seconds is not None]
    left = max(known) if len(known) == len(loaded) else None
    fleet.progress.report("Loading the model", min(held / max(wanted, 1), 0.99), left)


def too_slow(unit: Unit, loading: Loading, now: float) -> JobFailed:
    return JobFailed(
        f"{unit.replica.label}: not loaded after {now - loading.began:.0f} s; the links and the disk should need "
        f"less than {loading.deadline_seconds:.0f} s, and nothing moved for {STILL_MOVING_SECONDS:.0f} s. "
        "Measure the links again; a 100 Mb/s port or a sleeping device is the usual cause."
    )


async def check_identity(fleet: Fleet, unit: Unit, server: LlamaServer) -> None:
    """The answer must come from our own process: a taken port may belong to another llama-server."""
    alias, marker = await server.alias(), unit.master.marker
    if alias != marker:
        raise JobFailed(
            f"{unit.master_name}: port {unit.replica.port} is answered by another llama-server ({alias or 'no name'}). "
            "End it, or deploy again to get another port."
        )
    assert unit.master.pid is not None, "started"
    command = unit.command_of(unit.master_name)
    owner, who = await lifecycle.socket_owner(
        fleet.connection(unit.devices[unit.master_name]), unit.master.pid, command.address, command.port
    )
    if owner != "ours":
        raise JobFailed(
            f"{unit.master_name}: port {command.port} belongs to {who or 'another process'}, not to us."
        )


async def check_plan_in_force(fleet: Fleet, unit: Unit) -> None:
    """Every device of the plan holds weights and cache, and every slot is as long as planned."""
    key = check_key(unit.replica)
    fleet.progress.start_step(key)
    log, missing = await read_placement(fleet, unit)
    if missing:
        raise JobFailed(
            f"{unit.replica.label}: the master did not place anything on {', '.join(missing)}, so the plan is not in "
            "force. Its RPC worker was lost or has another version: compare the builds on the devices' pages."
        )
    await note_measured(unit, loadlog.buffers(log))
    async with upstream.open_server(
        unit.replica.port or 0, unit.replica.api_key, host=unit.replica.host or ""
    ) as server:
        await check_slots(unit, await server.slots())
        assert unit.commands is not None, "started"
        makes_embeddings = "--pooling" in unit.commands.master.argv
        seconds = await first_token_seconds(server, makes_embeddings=makes_embeddings)
    await run_in_database(states.note_seen, unit.master, ManagedProcess.States.READY)
    what = "embedding" if makes_embeddings else "token"
    fleet.progress.end_step(key, f"all devices hold their blocks; one {what} in {seconds:.2f} s")


async def note_measured(unit: Unit, buffers: dict[str, loadlog.Buffers]) -> None:
    """Keep what each process really holds beside what the plan said it would."""
    assert unit.commands is not None, "started"
    owners = {expected.log_name: expected.device for expected in unit.commands.expected}
    for name, process in unit.processes.items():
        own = {
            log_name: asdict(found)
            for log_name, found in buffers.items()
            if owners.get(log_name, unit.master_name) == name
        }
        process.measured = {"buffers": own}
        await run_in_database(process.save, update_fields=["measured"])


async def read_placement(fleet: Fleet, unit: Unit) -> tuple[str, list[str]]:
    """The lines about buffers, and the devices that they lack; the log is written by a thread that may lag behind."""
    assert unit.commands is not None, "started"
    connection = fleet.connection(unit.devices[unit.master_name])
    for _ in range(LOG_LOOKS):
        log = await observe.placement_lines(connection, f"{unit.master.run_folder}/{LOG_FILE}")
        missing = loadlog.missing_devices(log, unit.commands.expected)
        if not missing:
            break
        await asyncio.sleep(LOOK_SECONDS)
    return log, missing


async def check_slots(unit: Unit, slots: list[dict[str, Any]]) -> None:
    if len(slots) != unit.replica.slots:
        raise JobFailed(f"{unit.replica.label} has {len(slots)} slots, the plan says {unit.replica.slots}.")
    shortest = min(int(slot["n_ctx"]) for slot in slots)
    if shortest < unit.deployment.context_tokens:
        raise JobFailed(
            f"{unit.replica.label}: a slot holds {shortest} tokens, the plan says {unit.deployment.context_tokens}. "
            "This build divides the context otherwise: install a newer llama.cpp, or plan a shorter context."
        )


async def first_token_seconds(server: LlamaServer, *, makes_embeddings: bool) -> float:
    """One real token or embedding, since health says nothing about a hung worker."""
    began = time.monotonic()
    if makes_embeddings:
        await server.embed("Hello", timeout_seconds=PROBE_SECONDS)
        return time.monotonic() - began
    tokens = await server.tokenize("Hello")
    await server.prefill(tokens, 0, keep=False, timeout_seconds=PROBE_SECONDS)
    return time.monotonic() - began

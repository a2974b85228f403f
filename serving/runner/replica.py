"""One replica as a unit: choose ports, start workers then master, or stop all of it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from inventory.models import Device
from inventory.remote import RemoteError
from jobs.core.errors import JobFailed
from serving import from_inventory
from serving.core import startup
from serving.core.commands import LOG_FILE, ProcessCommand, ReplicaCommands
from serving.models import Deployment, ManagedProcess, Replica
from serving.processes import lifecycle, observe
from serving.processes.observe import HostState, Observation
from serving.runner import states
from serving.runner.fleet import Fleet, process_key, run_in_database

WORKER_UP_SECONDS = 30.0
LOOK_SECONDS = 0.3
KEPT_LOG_LINES = 60
SOON_SECONDS = 20.0

Kinds, States = ManagedProcess.Kinds, ManagedProcess.States


@dataclass
class Unit:
    """A replica with the rows of its current processes and, once ports are chosen, its command lines."""

    deployment: Deployment
    replica: Replica
    devices: dict[str, Device]
    processes: dict[str, ManagedProcess]
    commands: ReplicaCommands | None = None
    tried_ports: set[int] = field(default_factory=set)

    @property
    def plan(self) -> dict[str, Any]:
        """The replica's part of the plan."""
        return dict(self.deployment.plan["replicas"][self.replica.index])

    @property
    def master_name(self) -> str:
        return next(name for name, process in self.processes.items() if process.kind == Kinds.MASTER)

    @property
    def master(self) -> ManagedProcess:
        return self.processes[self.master_name]

    @property
    def workers(self) -> list[str]:
        return [name for name, process in self.processes.items() if process.kind == Kinds.WORKER]

    def command_of(self, name: str) -> ProcessCommand:
        assert self.commands is not None, "make_commands comes first"
        return next(command for command in self.commands.processes if command.device == name)


def wanted_processes(replica: Replica, devices: dict[str, Device]) -> dict[str, ManagedProcess]:
    """Fresh rows for every process of the replica, written before any host is touched."""
    rows = unsaved_processes(replica, devices)
    ManagedProcess.objects.bulk_create(rows.values())
    return rows


def unsaved_processes(replica: Replica, devices: dict[str, Device]) -> dict[str, ManagedProcess]:
    stages = replica.deployment.plan["replicas"][replica.index]["stages"]
    return {
        stage["device"]: ManagedProcess(
            replica=replica,
            device=devices[stage["device"]],
            kind=Kinds.MASTER if stage["master"] else Kinds.WORKER,
            marker=f"e2llm-{secrets.token_hex(6)}",
        )
        for stage in stages
        if stage["master"] or stage["gpu_blocks"] + stage["cpu_blocks"]
    }


def host_bytes(stage: dict[str, Any], device: Device) -> int:
    """What a stage of a plan takes of the host's own memory."""
    return int(stage["ram_bytes"] + (0 if device.hardware.get("gpus") else stage["gpu_bytes"]))


def ports_in_use() -> frozenset[int]:
    """Ports of all processes that should be there, on any host: several hosts may be one machine."""
    rows = ManagedProcess.objects.exclude(state__in=states.ENDED).exclude(port=None)
    return frozenset(row.port for row in rows if row.port is not None)


async def make_commands(fleet: Fleet, unit: Unit) -> None:
    """Choose a port and folders for each process, write them down, and make the command lines."""
    for name, process in unit.processes.items():
        state = fleet.states[unit.devices[name].pk]
        taken = unit.tried_ports | await run_in_database(ports_in_use)
        place(process, name, state, taken)
        unit.tried_ports.add(process.port or 0)
        await run_in_database(states.note_wanted, process)
    unit.commands = await run_in_database(
        from_inventory.commands_of, unit.deployment, unit.replica, unit.devices, unit.processes
    )
    for name, process in unit.processes.items():
        await run_in_database(states.note_argv, process, unit.command_of(name))
    master = unit.command_of(unit.master_name)
    await run_in_database(states.set_endpoint, unit.replica, master.address, master.port)


def place(process: ManagedProcess, name: str, state: HostState, taken: Collection[int]) -> None:
    """Give a process its port and folders."""
    process.port = observe.free_port(state.listening_ports | frozenset(taken))
    if process.port is None:
        raise JobFailed(
            f"{name}: no port between {observe.FIRST_PORT} and {observe.LAST_PORT} is free. "
            "End what listens there."
        )
    process.run_folder = from_inventory.run_folder(state.home, process.marker)
    process.slot_folder = from_inventory.slot_folder(
        state.home, process.marker, has_shared_memory=state.has_shared_memory
    )


async def start_process(fleet: Fleet, unit: Unit, name: str) -> None:
    """Start one process, its checklist line included."""
    process, device = unit.processes[name], unit.devices[name]
    command, key = unit.command_of(name), process_key(unit.replica, process)
    fleet.progress.start_step(key, f"port {command.port}")
    connection = fleet.connection(device)
    await preflight(fleet, unit, name)
    api_key = unit.replica.api_key if command.key_path else ""
    started = await lifecycle.start(connection, command, api_key)
    await run_in_database(states.note_started, process, started)
    if not started.is_alive:
        raise await ended(fleet, unit, name)
    if process.kind == Kinds.WORKER:
        await worker_listens(fleet, unit, name)
    fleet.progress.end_step(key, f"process {process.pid}, port {process.port}")


async def preflight(fleet: Fleet, unit: Unit, name: str) -> None:
    device, connection = unit.devices[name], fleet.connection(unit.devices[name])
    if unit.processes[name].kind == Kinds.MASTER:
        file = await run_in_database(from_inventory.model_file, unit.deployment, device)
        size_bytes = from_inventory.first_file_bytes(file)
        await lifecycle.preflight(connection, name, device.llama["server_path"], file.path, size_bytes)
    else:
        await lifecycle.preflight(connection, name, device.llama["rpc_server_path"], "", 0)


async def worker_listens(fleet: Fleet, unit: Unit, name: str) -> None:
    """Wait until the worker's own process owns its port; connecting to an RPC port would block its master."""
    process, command = unit.processes[name], unit.command_of(name)
    connection = fleet.connection(unit.devices[name])
    assert process.pid is not None, "started"
    for _ in range(int(WORKER_UP_SECONDS / LOOK_SECONDS)):
        fleet.progress.check()
        owner, who = await lifecycle.socket_owner(connection, process.pid, command.address, command.port)
        if owner == "ours":
            await run_in_database(states.note_seen, process, States.READY)
            return
        if owner == "other":
            raise PortTaken(
                f"{name}: port {command.port} is used by {who or 'another process'}. Deploy again."
            )
        if not is_running(process, await observe.observe(connection)):
            raise await ended(fleet, unit, name)
        await asyncio.sleep(LOOK_SECONDS)
    raise JobFailed(
        f"{name}: the RPC worker did not listen on port {command.port} within {WORKER_UP_SECONDS:.0f} s. "
        "Its log is on the device's page."
    )


def is_running(process: ManagedProcess, seen: Observation) -> bool:
    return seen.find(process.marker, process.pid, process.start_ticks, process.boot_id) is not None


class EndedWithoutCause(JobFailed):
    """A process ended soon after its start and its log does not say why: another try may tell."""


class PortTaken(JobFailed):
    """Somebody took the port after it was chosen; another one may do."""


async def ended(fleet: Fleet, unit: Unit, name: str) -> JobFailed:
    """The error for a process that ended by itself, with what its log says; the log's end is kept.

    A master ends when it loses a worker, and only the worker's host can say why: a lost one is raised instead.
    """
    process = unit.processes[name]
    if process.kind == Kinds.MASTER:
        for worker in unit.workers:
            seen = await observe.observe(fleet.connection(unit.devices[worker]))
            if not is_running(unit.processes[worker], seen):
                raise await ended(fleet, unit, worker)
    log = await observe.log_tail(fleet.connection(unit.devices[name]), f"{process.run_folder}/{LOG_FILE}")
    reason = startup.explain(log)
    last_lines = "\n".join(log.splitlines()[-KEPT_LOG_LINES:])
    await run_in_database(states.note_ended, process, States.EXITED, f"{reason}\n\n{last_lines}")
    said_nothing = startup.lacks_cause(log) and states.age_seconds(process) < SOON_SECONDS
    kind = EndedWithoutCause if said_nothing else PortTaken if startup.is_port_taken(log) else JobFailed
    return kind(f"{name}: {process.get_kind_display()} ended: {reason}")


async def stop_processes(fleet: Fleet, processes: list[ManagedProcess]) -> list[ManagedProcess]:
    """Stop masters, then workers, on all hosts at once; returns those whose host does not answer."""
    unreached: list[ManagedProcess] = []

    async def stop_one(process: ManagedProcess) -> None:
        assert process.device is not None, "rows without a device are dropped before"
        try:
            connection = fleet.connection(process.device)
            await lifecycle.stop(connection, process.marker, process.run_folder, process.slot_folder)
        except RemoteError as error:
            fleet.progress.log(f"{process.device}: {error}")
            await run_in_database(states.note_seen, process, States.UNKNOWN)
            unreached.append(process)
            return
        await run_in_database(states.note_removed, process)

    for kind in (Kinds.MASTER, Kinds.WORKER):
        await asyncio.gather(*(stop_one(process) for process in processes if process.kind == kind))
    return unreached

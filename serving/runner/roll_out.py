"""Bring replicas of a deployment up, host by host; a failure takes down what was started and names its cause."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from asgiref.sync import async_to_sync

from inventory.core.quantities import bytes_text
from inventory.models import Device
from inventory.remote import RemoteError
from inventory.upstream import UpstreamError
from jobs.core.errors import Cancelled, JobFailed, LeaseLost
from jobs.progress import Progress
from serving import from_inventory
from serving.core.placement import BadLaunch
from serving.models import Deployment, ManagedProcess, Replica
from serving.processes import observe
from serving.processes.lifecycle import StartRefused
from serving.runner import readiness, states
from serving.runner import replica as units
from serving.runner.fleet import (
    Fleet,
    check_key,
    load_key,
    process_key,
    reach,
    run_in_database,
    short_label,
    together,
)
from serving.runner.replica import Unit

MOST_STARTS = 3  # of a llama-server that ends at once and does not say why
EXPECTED_FAILURES = (RemoteError, UpstreamError, BadLaunch, StartRefused, JobFailed)


def roll_out(progress: Progress, deployment: Deployment, replicas: Iterable[Replica]) -> None:
    """Start these replicas and make sure that the plan is in force; all of them are stopped when one fails."""
    try:
        devices = from_inventory.devices_of(deployment)
        prepared = [prepare(progress, deployment, replica, devices) for replica in replicas]
        async_to_sync(bring_up)(progress, prepared)
    except LeaseLost:
        raise
    except (Cancelled, *EXPECTED_FAILURES) as error:
        progress.call_off(
            "cancelled" if isinstance(error, Cancelled) else "called off, because another part failed"
        )
        take_down(progress, replicas, "" if isinstance(error, Cancelled) else str(error))
        if isinstance(error, (Cancelled, JobFailed)):
            raise
        raise JobFailed(str(error)) from error


def masters_without_model(deployment: Deployment) -> list[Device]:
    """Masters on which no copy of the model is known; the roll-out names a device that is not there at all."""
    try:
        devices = from_inventory.devices_of(deployment)
    except BadLaunch as error:
        raise JobFailed(str(error)) from error
    stages = [stage for replica in deployment.plan["replicas"] for stage in replica["stages"]]
    masters = [devices[stage["device"]] for stage in stages if stage["master"]]
    return [device for device in masters if not device.model_files.filter(model=deployment.model).exists()]


def prepare(progress: Progress, deployment: Deployment, replica: Replica, devices: dict[str, Device]) -> Unit:
    """Rows and checklist lines of one replica; what an earlier try has left is stopped by `bring_up`."""
    stages = deployment.plan["replicas"][replica.index]["stages"]
    own = {stage["device"]: devices[stage["device"]] for stage in stages}
    from_inventory.refuse_unequal_builds(replica.label, list(own.values()))
    from_inventory.refuse_lost_gpus(deployment, own)
    unit = Unit(deployment, replica, own, units.wanted_processes(replica, own))
    states.set_replica(replica, Replica.States.STARTING)
    label = short_label(replica)
    for name in [*unit.workers, unit.master_name]:
        process = unit.processes[name]
        progress.step(process_key(replica, process), f"{label} · {name}: start {process.get_kind_display()}")
    progress.step(load_key(replica), f"{label} · load the model")
    progress.step(check_key(replica), f"{label} · check devices, slots and a first token")
    return unit


async def bring_up(progress: Progress, prepared: list[Unit]) -> None:
    devices = [device for unit in prepared for device in unit.devices.values()]
    async with reach(devices, progress) as fleet:
        for unit in prepared:
            await stop_left_over(fleet, unit)
        await read_facts(fleet, devices)
        for unit in prepared:
            refuse_without_memory(fleet, unit)
        for unit in prepared:
            await units.make_commands(fleet, unit)
            readiness.expect(fleet, unit)
        await together(start_replica(fleet, unit) for unit in prepared)


async def stop_left_over(fleet: Fleet, unit: Unit) -> None:
    """End what an earlier try of this replica started, whose rows are older than the fresh ones."""
    fresh = {process.pk for process in unit.processes.values()}
    rows = await run_in_database(live_rows, [unit.replica])
    await units.stop_processes(fleet, [row for row in rows if row.pk not in fresh])


def live_rows(replicas: Iterable[Replica]) -> list[ManagedProcess]:
    """Rows of processes that may still be there; one whose device was removed cannot be reached any more."""
    rows = states.left_on_hosts().filter(replica__in=list(replicas))
    return list(rows.exclude(device=None).select_related("device", "device__identity"))


async def read_facts(fleet: Fleet, devices: list[Device]) -> None:
    async def one(device: Device) -> None:
        fleet.states[device.pk] = await observe.host_state(fleet.connection(device))

    await together(one(device) for device in {device.pk: device for device in devices}.values())


def refuse_without_memory(fleet: Fleet, unit: Unit) -> None:
    """Before anything is started: what the plan puts into a host's RAM must be free there now."""
    for stage in unit.plan["stages"]:
        device = unit.devices[stage["device"]]
        needed = units.host_bytes(stage, device)
        free = fleet.states[device.pk].memory_available_bytes
        if needed > free:
            raise JobFailed(
                f"{device}: the plan needs {bytes_text(needed)} of memory there, {bytes_text(free)} are free. "
                "End what else uses it, or probe the device and make a new plan."
            )


@contextmanager
def failing(fleet: Fleet, key: str) -> Iterator[None]:
    """The checklist line that shows a failure inside."""
    try:
        yield
    except EXPECTED_FAILURES as error:
        fleet.progress.fail_step(key, str(error))
        raise


async def start_replica(fleet: Fleet, unit: Unit) -> None:
    """Workers, then the master, then the checks; on other ports when one was taken in the last moment."""
    try:
        await start_processes(fleet, unit)
    except units.PortTaken as error:
        fleet.progress.log(f"{error} The replica is started again on other ports.")
        if await units.stop_processes(fleet, list(unit.processes.values())):
            raise
        await read_facts(fleet, list(unit.devices.values()))
        await units.make_commands(fleet, unit)
        await start_processes(fleet, unit)
    with failing(fleet, check_key(unit.replica)):
        await readiness.check_plan_in_force(fleet, unit)
    await run_in_database(states.set_replica, unit.replica, Replica.States.READY)


async def start_processes(fleet: Fleet, unit: Unit) -> None:
    await together(start_process(fleet, unit, name) for name in unit.workers)
    await load_master(fleet, unit)


async def load_master(fleet: Fleet, unit: Unit) -> None:
    """Start the master and wait for its weights; again when it ended at once and its log was lost with it."""
    for tries in range(1, MOST_STARTS + 1):
        try:
            await start_process(fleet, unit, unit.master_name)
            await run_in_database(states.set_replica, unit.replica, Replica.States.LOADING)
            with failing(fleet, load_key(unit.replica)):
                await readiness.wait_until_loaded(fleet, unit)
            return
        except units.EndedWithoutCause as error:
            if tries == MOST_STARTS:
                raise JobFailed(
                    f"{error} It was started {MOST_STARTS} times, each time with this end."
                ) from error
            fleet.progress.log(f"{error} It is started again.")


async def start_process(fleet: Fleet, unit: Unit, name: str) -> None:
    with failing(fleet, process_key(unit.replica, unit.processes[name])):
        await units.start_process(fleet, unit, name)


def take_down(progress: Progress, replicas: Iterable[Replica], reason: str) -> list[str]:
    """Stop every process of these replicas; returns the devices that could not be reached for it.

    With a reason they have failed; without, they are stopped once every host has confirmed it.
    """
    replicas = list(replicas)
    for replica in replicas:
        states.set_replica(replica, Replica.States.FAILED if reason else Replica.States.STOPPING, reason)
    left = async_to_sync(stop_rows)(progress, live_rows(replicas))
    if not reason:
        for replica in replicas:
            note_taken_down(replica, [process for process in left if process.replica_id == replica.pk])
    return names_of(left)


def note_taken_down(replica: Replica, left: list[ManagedProcess]) -> None:
    if left:
        states.set_replica(replica, Replica.States.STOPPING, waiting_for(names_of(left)))
    else:
        states.set_replica(replica, Replica.States.STOPPED)


def names_of(processes: list[ManagedProcess]) -> list[str]:
    return sorted({str(process.device) for process in processes})


def waiting_for(devices: list[str]) -> str:
    return (
        f"{', '.join(devices)} cannot be reached, so processes may still run there. "
        "They are stopped as soon as it answers again."
    )


async def stop_rows(progress: Progress, rows: list[ManagedProcess]) -> list[ManagedProcess]:
    async with reach([row.device for row in rows if row.device], progress) as fleet:
        return await asyncio.shield(units.stop_processes(fleet, rows))

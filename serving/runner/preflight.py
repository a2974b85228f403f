"""What must be true of every host before anything that answers there is stopped for another plan."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from asgiref.sync import async_to_sync

from inventory.core.quantities import bytes_text
from inventory.models import Device
from inventory.remote import RemoteError
from inventory.upstream import UpstreamError
from jobs.core.errors import JobFailed
from jobs.progress import Progress
from serving import from_inventory
from serving.core.placement import BadLaunch
from serving.models import Deployment, ManagedProcess, Replica
from serving.processes import lifecycle, observe
from serving.processes.lifecycle import StartRefused
from serving.processes.observe import HostState
from serving.runner import replica as units
from serving.runner.fleet import Fleet, reach, run_in_database, together
from serving.runner.replica import Unit

KEY = "preflight"
REFUSALS = (RemoteError, UpstreamError, BadLaunch, StartRefused)


def preflight(
    progress: Progress, deployment: Deployment, replicas: Iterable[Replica], stopping: Iterable[Replica]
) -> None:
    """Raise JobFailed when a host cannot run its part once the replicas of `stopping` are gone."""
    progress.start_step(KEY)
    try:
        try:
            devices = from_inventory.devices_of(deployment)
            checked = [wanted(deployment, replica, devices) for replica in replicas]
            async_to_sync(look)(progress, checked, {replica.pk for replica in stopping})
        except REFUSALS as error:
            raise JobFailed(str(error)) from error
    except JobFailed as error:
        progress.fail_step(KEY, f"{error} Nothing was stopped.")
        raise
    progress.end_step(KEY)


def wanted(deployment: Deployment, replica: Replica, devices: dict[str, Device]) -> Unit:
    """The replica as it would be started, without rows."""
    stages = deployment.plan["replicas"][replica.index]["stages"]
    own = {stage["device"]: devices[stage["device"]] for stage in stages}
    from_inventory.refuse_unequal_builds(replica.label, list(own.values()))
    from_inventory.refuse_lost_gpus(deployment, own)
    return Unit(deployment, replica, own, units.unsaved_processes(replica, own))


async def look(progress: Progress, checked: list[Unit], stopping: set[int]) -> None:
    devices = {device.pk: device for unit in checked for device in unit.devices.values()}
    async with reach(devices.values(), progress) as fleet:
        freed = await run_in_database(markers_of, stopping)
        await together(look_at(fleet, device, freed) for device in devices.values())
        refuse_without_memory(fleet, checked)
        for unit in checked:
            await refuse_without_commands(fleet, unit)
        await together(units.preflight(fleet, unit, name) for unit in checked for name in unit.processes)


def markers_of(replica_ids: set[int]) -> set[str]:
    return set(ManagedProcess.objects.filter(replica__in=replica_ids).values_list("marker", flat=True))


async def look_at(fleet: Fleet, device: Device, freed: set[str]) -> None:
    """Facts of one host, with the memory that would be free; its folders can be written."""
    connection = fleet.connection(device)
    state = await observe.host_state(connection)
    seen = await observe.observe(connection)
    held_bytes = sum(one.resident_bytes for one in seen.processes if one.marker in freed)
    fleet.states[device.pk] = state
    fleet.freed_bytes[device.pk] = held_bytes
    await lifecycle.refuse_unwritable(connection, str(device), folders(state))


def folders(state: HostState) -> list[str]:
    found = [from_inventory.run_folder(state.home, "").rstrip("/")]
    return [*found, from_inventory.SHARED_MEMORY] if state.has_shared_memory else found


def refuse_without_memory(fleet: Fleet, checked: list[Unit]) -> None:
    needed: dict[int, int] = defaultdict(int)
    devices: dict[int, Device] = {}
    for unit in checked:
        for stage in unit.plan["stages"]:
            device = unit.devices[stage["device"]]
            devices[device.pk] = device
            needed[device.pk] += units.host_bytes(stage, device)
    for key, device in devices.items():
        free = fleet.states[key].memory_available_bytes + fleet.freed_bytes[key]
        if needed[key] > free:
            raise JobFailed(
                f"{device}: the plan needs {bytes_text(needed[key])} of memory there, {bytes_text(free)} would be "
                "free. End what else uses it, or probe the device and make a new plan."
            )


async def refuse_without_commands(fleet: Fleet, unit: Unit) -> None:
    """The plan can be said as command lines, and there are ports for them."""
    for name, process in unit.processes.items():
        state = fleet.states[unit.devices[name].pk]
        units.place(process, name, state, unit.tried_ports)
        unit.tried_ports.add(process.port or 0)
    await run_in_database(
        from_inventory.commands_of, unit.deployment, unit.replica, unit.devices, unit.processes
    )

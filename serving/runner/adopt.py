"""Check a replica that was found running, as after a roll-out, and take it into service; or let it go again."""

from __future__ import annotations

from asgiref.sync import async_to_sync

from jobs.core.errors import Cancelled, JobFailed, LeaseLost
from jobs.progress import Progress
from serving import from_inventory
from serving.core.commands import KEY_FILE
from serving.models import Deployment, ManagedProcess, Replica
from serving.runner import readiness, states
from serving.runner.fleet import Fleet, check_key, load_key, reach, run_in_database, short_label
from serving.runner.replica import Unit
from serving.runner.roll_out import EXPECTED_FAILURES, failing

KEY_BYTES = 200


def adopt(progress: Progress, deployment: Deployment, replica: Replica) -> None:
    """Its rows are written already; whatever comes out, nothing is changed on the hosts."""
    label = short_label(replica)
    progress.step(load_key(replica), f"{label} · find it loaded, and answering as itself")
    progress.step(check_key(replica), f"{label} · check devices, slots and a first token")
    try:
        async_to_sync(check)(progress, unit_of(progress, deployment, replica))
    except LeaseLost:
        raise
    except (Cancelled, *EXPECTED_FAILURES) as error:
        let_go(progress, deployment, replica)
        if isinstance(error, (Cancelled, JobFailed)):
            raise
        raise JobFailed(str(error)) from error
    replica.restarts = 0
    replica.save(update_fields=["restarts"])
    progress.report(f"{replica.label} is adopted", 1.0)


def unit_of(progress: Progress, deployment: Deployment, replica: Replica) -> Unit:
    devices = from_inventory.devices_of(deployment)
    rows = ManagedProcess.objects.filter(marker__in=progress.job.params["markers"])
    by_device = {row.device_id: row for row in rows}
    stages = deployment.plan["replicas"][replica.index]["stages"]
    own = {stage["device"]: devices[stage["device"]] for stage in stages}
    processes = {name: by_device[device.pk] for name, device in own.items() if device.pk in by_device}
    commands = from_inventory.commands_of(deployment, replica, own, processes)
    return Unit(deployment, replica, own, processes, commands)


async def check(progress: Progress, unit: Unit) -> None:
    async with reach(unit.devices.values(), progress) as fleet:
        with failing(fleet, load_key(unit.replica)):
            await read_key(fleet, unit)
            await readiness.wait_until_loaded(fleet, unit)
        with failing(fleet, check_key(unit.replica)):
            await readiness.check_plan_in_force(fleet, unit)
    for process in unit.processes.values():
        await run_in_database(states.note_seen, process, ManagedProcess.States.READY)
    await run_in_database(states.set_replica, unit.replica, Replica.States.READY)


async def read_key(fleet: Fleet, unit: Unit) -> None:
    """The key that this llama-server was started with may be another than the one we would give it."""
    connection = fleet.connection(unit.devices[unit.master_name])
    key = await connection.read_file(f"{unit.master.run_folder}/{KEY_FILE}", KEY_BYTES)
    unit.replica.api_key = key.decode().strip()
    await run_in_database(unit.replica.save, update_fields=["api_key"])


def let_go(progress: Progress, deployment: Deployment, replica: Replica) -> None:
    """As it was before: the processes run on and belong to nobody."""
    params = progress.job.params
    rows = ManagedProcess.objects.filter(marker__in=params["markers"])
    rows.filter(marker__in=params["made"]).delete()
    for row in rows:
        states.note_ended(row, ManagedProcess.States.STOPPED, "It was not adopted.")
    states.set_replica(replica, Replica.States(params["was"]["state"]), params["was"]["reason"])
    deployment.wanted = params["was"]["wanted"]
    deployment.save(update_fields=["wanted"])

"""Take over a replica that runs without being managed, when it is exactly what a deployment's plan wants."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from django.db import transaction

from accounts.models import User
from accounts.services import audit
from inventory.models import Device
from jobs import services as jobs
from jobs.models import Job
from serving import from_inventory
from serving.core import adoption
from serving.core.placement import BadLaunch
from serving.models import Deployment, ManagedProcess, Replica
from serving.processes.observe import Identity
from serving.runner import states
from serving.runner.operate import TASK
from serving.services import deployments
from serving.services.orphans import Orphan, Search

NEWEST = 20  # deployments whose plans are compared
MASTER, WORKER = ManagedProcess.Kinds.MASTER, ManagedProcess.Kinds.WORKER


class CannotAdopt(Exception):
    """The process is not what a plan wants, or the plan does not need it; the text says why."""


@dataclass(frozen=True)
class Offer:
    """A replica that does not run, and the rows that its running processes would have; not saved."""

    replica: Replica
    rows: list[ManagedProcess]
    is_foreign: bool

    @property
    def label(self) -> str:
        return f"{self.replica.label} of {self.replica.deployment}"


def offer(search: Search, orphan: Orphan) -> Offer:
    """The replica that this llama-server and the RPC workers it uses are; CannotAdopt when they are none."""
    if kind_of(orphan) == WORKER:
        raise CannotAdopt("An RPC worker is adopted with the llama-server that uses it.")
    reasons = []
    for replica in candidates(orphan):
        try:
            return match(search, orphan, replica)
        except (CannotAdopt, BadLaunch) as error:
            reasons.append(f"{replica.label} of {replica.deployment}: {error}")
    raise CannotAdopt(reasons[0] if reasons else f"No deployment has a llama-server on {orphan.where}.")


def offers(search: Search) -> list[tuple[Orphan, Offer | None, str]]:
    """Each process with the replica that it may become, or with the reason why it can become none."""
    found: list[tuple[Orphan, Offer | None, str]] = []
    for orphan in search.orphans:
        try:
            found.append((orphan, offer(search, orphan), ""))
        except CannotAdopt as error:
            found.append((orphan, None, str(error)))
    return found


def identity_of(orphan: Orphan) -> Identity:
    if orphan.identity is None:
        raise CannotAdopt("It ended, or its host did not say what it is. Look again.")
    return orphan.identity


def kind_of(orphan: Orphan) -> ManagedProcess.Kinds:
    """By the installed program that it runs."""
    program = identity_of(orphan).program
    if not program:
        raise CannotAdopt("It is not the llama.cpp that is installed there now, so its build is not known.")
    return MASTER if program == orphan.devices[0].llama.get("server_path") else WORKER


def candidates(master: Orphan) -> Iterator[Replica]:
    """Replicas with their master on this device: that of the process's row, else of the newest deployments."""
    row = ManagedProcess.objects.filter(marker=master.process.marker).first()
    if row is not None:
        yield Replica.objects.select_related("deployment__model", "deployment__plan_run").get(
            pk=row.replica_id
        )
        return
    recent = Deployment.objects.select_related("model", "plan_run").prefetch_related("replicas")[:NEWEST]
    for deployment in sorted(recent, key=lambda one: one.wanted != Deployment.Wanted.RUNNING):
        for replica in deployment.replicas.all():
            if any(from_inventory.is_master_of(deployment, replica, device) for device in master.devices):
                yield replica


def match(search: Search, master: Orphan, replica: Replica) -> Offer:
    """CannotAdopt names the first thing in which the processes are not this replica."""
    deployment = replica.deployment
    members = members_of(search, master, replica)
    markers = [orphan.process.marker for orphan in members.values()]
    if states.left_on_hosts().filter(replica=replica).exclude(marker__in=markers).exists():
        raise CannotAdopt("it has processes of its own; restart it, or stop this process.")
    others = [other for other in deployments.overlapping(deployment.plan) if other != deployment]
    if others:
        raise CannotAdopt(f"{others[0]} runs on its devices; stop that first.")
    devices = from_inventory.devices_of(deployment)
    rows = {name: row_of(replica, devices[name], orphan, name, members) for name, orphan in members.items()}
    from_inventory.refuse_unequal_builds(replica.label, [devices[name] for name in members])
    for command in from_inventory.commands_of(deployment, replica, devices, rows).processes:
        orphan = members[command.device]
        kind_of(orphan)
        differs = adoption.difference(command.argv, identity_of(orphan).words)
        if differs:
            raise CannotAdopt(f"{command.device}: {differs}.")
        rows[command.device].argv = list(command.argv)
    return Offer(replica, list(rows.values()), not all(orphan.is_ours for orphan in members.values()))


def members_of(search: Search, master: Orphan, replica: Replica) -> dict[str, Orphan]:
    """By the plan's names; the master first."""
    deployment = replica.deployment
    devices = from_inventory.devices_of(deployment)
    stages = deployment.plan["replicas"][replica.index]["stages"]
    members = {stage["device"]: master for stage in stages if stage["master"]}
    for stage in stages:
        if not stage["master"] and stage["gpu_blocks"] + stage["cpu_blocks"]:
            members[stage["device"]] = worker_of(search, identity_of(master), devices[stage["device"]])
    return members


def worker_of(search: Search, master: Identity, device: Device) -> Orphan:
    """The process on the device that listens where the llama-server looks for its RPC worker."""
    address = f"{from_inventory.address_of(device)}:"
    wanted = [end for end in adoption.rpc_endpoints(master.words) if end.startswith(address)]
    for orphan in search.orphans:
        words = orphan.identity.words if orphan.identity else ()
        if device in orphan.devices and adoption.own_endpoint(words) in wanted:
            return orphan
    raise CannotAdopt(f"its RPC worker on {device} does not run, or {device} does not answer.")


def row_of(
    replica: Replica, device: Device, orphan: Orphan, name: str, members: dict[str, Orphan]
) -> ManagedProcess:
    identity, marker = identity_of(orphan), orphan.process.marker
    is_master = name == next(iter(members))
    port = adoption.option(identity.words, "--port" if is_master else "-p")
    return ManagedProcess(
        replica=replica,
        device=device,
        kind=MASTER if is_master else WORKER,
        marker=marker,
        port=int(port) if port.isdigit() else 0,
        run_folder=from_inventory.run_folder(identity.home, marker),
        slot_folder=from_inventory.slot_folder(
            identity.home, marker, has_shared_memory=identity.has_shared_memory
        ),
        pid=orphan.process.pid,
        start_ticks=orphan.process.start_ticks,
        boot_id=orphan.boot_id,
    )


def adopt(found: Offer, user: User) -> Job:
    """Write the rows and let a worker check the replica; it is given up again when it does not answer as planned."""
    replica, deployment = found.replica, found.replica.deployment
    was = {"wanted": deployment.wanted, "state": replica.state, "reason": replica.state_reason}
    with transaction.atomic():
        deployments.refuse_while_changing(
            list(from_inventory.devices_of(deployment).values()), deployment.plan
        )
        made = [row.marker for row in found.rows if states.note_adopted(row)]
        master = found.rows[0]
        assert master.device is not None and master.port is not None, "read from what runs there"
        states.set_endpoint(replica, from_inventory.address_of(master.device), master.port)
        states.set_replica(
            replica, Replica.States.STARTING, "It ran without being managed and is being adopted."
        )
        deployment.wanted = Deployment.Wanted.RUNNING
        deployment.save(update_fields=["wanted"])
        params = {"deployment": deployment.pk, "action": "adopt", "replica": replica.index}
        params |= {"was": was, "made": made, "markers": [row.marker for row in found.rows]}
        job = jobs.start(TASK, params, user, label=f"Adopt {replica.label}", subject=deployment.subject)
    for row in found.rows:
        audit(user, "process.adopted", row.device, {"marker": row.marker, "replica": found.label})
    return job

"""Put a plan on the hosts, and take it off again."""

from __future__ import annotations

import secrets
from typing import Any

from django.db import transaction
from django.db.models import Q

from accounts.models import User
from accounts.services import audit
from inventory.models import Device, LanguageModel
from jobs import services as jobs
from jobs.models import Job, State
from planner.models import PlanRun
from serving import from_inventory
from serving.core.beside import fits_beside
from serving.core.firewall import WorkerPort
from serving.models import Deployment, ManagedProcess, Replica
from serving.runner.operate import TASK, stopped_for
from serving.runner.states import HUNG

WANTED = Deployment.Wanted.RUNNING
ANSWERS = (Deployment.States.RUNNING, Deployment.States.DEGRADED)
SHOWN_ENDS = 20


class CannotDeploy(Exception):
    """The plan cannot be put on these hosts; the text names the cause and the remedy."""


class CannotDrain(Exception):
    """Nothing would answer without this replica."""


def deploy_run(run: PlanRun, user: User | None) -> Deployment:
    """Deploy the plan of a finished run."""
    if run.plan is None:
        raise CannotDeploy(f"The run “{run}” has no plan yet. Wait until it has ended, or run it again.")
    if run.model is None:
        raise CannotDeploy(f"The model of “{run}” was removed. Add it again and make a new plan.")
    return deploy(run.plan, run.cluster, run.model, user, plan_run=run)


def deploy(
    plan: dict[str, Any],
    cluster: dict[str, Any],
    model: LanguageModel,
    user: User | None,
    *,
    plan_run: PlanRun | None = None,
    instead_of: Deployment | None = None,
) -> Deployment:
    """Record what is wanted and start the roll-out; what runs on its devices, and `instead_of`, is replaced by it."""
    devices = from_inventory.devices_by_name(plan, dict(plan_run.device_ids) if plan_run else {})
    with transaction.atomic():
        refuse_while_changing(list(devices.values()), plan)
        replaced = overlapping(plan)
        if instead_of is not None and instead_of.wanted == WANTED and instead_of not in replaced:
            replaced.append(instead_of)
        deployment = record(plan, cluster, model, user, plan_run)
        beside = bool(replaced) and fits_beside(plan, [other.plan for other in replaced])
        params = {
            "deployment": deployment.pk,
            "action": "deploy",
            "replaces": [other.pk for other in replaced],
            "beside": beside,
        }
        jobs.start(TASK, params, user, label=f"Deploy {deployment}", subject=deployment.subject)
    audit(user, "deployment.started", deployment, {"replaces": [str(other) for other in replaced]})
    return deployment


def record(
    plan: dict[str, Any],
    cluster: dict[str, Any],
    model: LanguageModel,
    user: User | None,
    plan_run: PlanRun | None,
) -> Deployment:
    """The wanted state as rows, before any host is touched."""
    handover = plan["mode"] == "disaggregated" and cluster["policy"].get("handover", True)
    deployment = Deployment.objects.create(
        plan_run=plan_run,
        model=model,
        name=model.name,
        plan=plan,
        cluster=cluster,
        context_tokens=cluster["workload"]["context_tokens"],
        handover_on=handover and not from_inventory.is_recurrent(model),
        created_by=user,
    )
    for index, replica in enumerate(plan["replicas"]):
        Replica.objects.create(
            deployment=deployment,
            index=index,
            role=replica["role"],
            slots=replica["slots"],
            api_key=secrets.token_urlsafe(32),
        )
    return deployment


def refuse_while_changing(devices: list[Device], plan: dict[str, Any]) -> None:
    """AlreadyRunning while something else is started or stopped on a device of this plan.

    The locked rows make two clicks at the same moment wait for each other.
    """
    list(Device.objects.select_for_update().filter(pk__in=[device.pk for device in devices]).order_by("pk"))
    names = set(from_inventory.plan_devices(plan))
    for job in Job.objects.active().filter(kind=TASK).select_related("started_by"):
        other = Deployment.objects.filter(pk=job.params["deployment"]).first()
        if other is not None and names & set(from_inventory.plan_devices(other.plan)):
            raise jobs.AlreadyRunning(job)


def overlapping(plan: dict[str, Any]) -> list[Deployment]:
    """Running deployments that use a device of this plan."""
    names = set(from_inventory.plan_devices(plan))
    running = Deployment.objects.filter(wanted=Deployment.Wanted.RUNNING)
    return [other for other in running if names & set(from_inventory.plan_devices(other.plan))]


def brought_back(deployment: Deployment) -> list[str]:
    """What became of the deployments that its roll-out had stopped before it failed or was cancelled, in sentences."""
    job = Job.objects.about(deployment.subject).filter(kind=TASK, params__action="deploy").first()
    if job is None or job.state not in (State.FAILED, State.CANCELLED) or deployment.state in ANSWERS:
        return []
    stopped = job.steps.filter(key__startswith="stop:").exclude(started_at=None)
    old = Deployment.objects.filter(pk__in=[int(step.key.partition(":")[2]) for step in stopped])
    return [f"{other} {result_of_return(other, job)}." for other in old]


def result_of_return(deployment: Deployment, given_up: Job) -> str:
    tries = Job.objects.about(deployment.subject).filter(kind=TASK, pk__gt=given_up.pk)
    last = tries.filter(params__action="deploy").first()
    if last is None and deployment.state in ANSWERS:
        return "was to be stopped for this one and goes on"
    if last is None and deployment.wanted == Deployment.Wanted.STOPPED:
        return "was stopped for this one and stays stopped"
    return f"was stopped for this one and {result_of_start(deployment, last)}"


def result_of_start(deployment: Deployment, start: Job | None) -> str:
    if start is None:
        return "is to be started again; requests for it wait"
    if start.is_active:
        return "is being started again; requests for it wait"
    if start.state == State.SUCCEEDED:
        return "was started again: it runs" if deployment.wanted == WANTED else "was started again"
    cause = start.error.rstrip(".") or start.get_state_display().lower()
    return f"could not be started again: {cause}. Deploy it again on its page when the cause is gone"


def stop(deployment: Deployment, user: User | None) -> Job:
    """Stop all processes; a roll-out under way is cancelled, which brings back what it had stopped."""
    deployment.wanted = Deployment.Wanted.STOPPED
    deployment.save(update_fields=["wanted"])
    audit(user, "deployment.stopped", deployment)
    params: dict[str, Any] = {"deployment": deployment.pk, "action": "stop"}
    running = jobs.active_for(deployment.subject)
    if running is not None:
        jobs.cancel(running)
        running.refresh_from_db()
        if running.is_active:
            return running
        params["brings_back"] = [other.pk for other in stopped_for(running)]
    return jobs.start(TASK, params, user, label=f"Stop {deployment}", subject=deployment.subject)


def restart_replica(replica: Replica, user: User | None) -> Job:
    """Drain, stop and start one replica as a whole; AlreadyRunning when its deployment is being changed."""
    replica.restarts = 0
    job = change_replica(replica, "restart", f"Restart {replica.label}", user)
    replica.save(update_fields=["restarts"])
    audit(user, "replica.restarted", replica.label)
    return job


def drain_replica(replica: Replica, user: User | None) -> Job:
    """Drain one replica and leave it stopped until it is restarted; the last one that answers is refused."""
    others = replica.deployment.replicas.filter(state=Replica.States.READY).exclude(pk=replica.pk)
    if not others.exists():
        raise CannotDrain(
            f"{replica.label} is the only replica that answers. Stop the deployment instead, or restart the replica."
        )
    job = change_replica(replica, "rest", f"Drain {replica.label}", user)
    audit(user, "replica.drained", replica.label)
    return job


def change_replica(replica: Replica, action: str, label: str, user: User | None) -> Job:
    deployment = replica.deployment
    running = jobs.active_for(deployment.subject)
    if running is not None:
        raise jobs.AlreadyRunning(running)
    params = {"deployment": deployment.pk, "action": action, "replica": replica.index}
    return jobs.start(TASK, params, user, label=label, subject=deployment.subject)


def roll_back(deployment: Deployment, user: User | None) -> Deployment:
    """Deploy the plan that ran before this one."""
    previous = previous_of(deployment)
    if previous is None:
        raise CannotDeploy("No other plan ran before this deployment, so there is nothing to roll back to.")
    audit(user, "deployment.rolled_back", deployment, {"to": str(previous)})
    return deploy(
        previous.plan,
        previous.cluster,
        previous.model,
        user,
        plan_run=previous.plan_run,
        instead_of=deployment,
    )


def deploy_again(old: Deployment, user: User | None) -> Deployment:
    return deploy(old.plan, old.cluster, old.model, user, plan_run=old.plan_run)


def previous_of(deployment: Deployment) -> Deployment | None:
    """The latest earlier deployment of another plan that was once ready and did not end in failure."""
    earlier = Deployment.objects.filter(pk__lt=deployment.pk, replicas__ready_at__isnull=False)
    sound = earlier.exclude(state=Deployment.States.FAILED).distinct().order_by("-pk")
    return next((one for one in sound if wish_of(one) != wish_of(deployment)), None)


def wish_of(deployment: Deployment) -> tuple[dict[str, Any], int]:
    return deployment.plan, deployment.context_tokens


def worker_ports(deployment: Deployment) -> list[WorkerPort]:
    """The RPC workers of a deployment that were given a port, each with the master that uses it."""
    placed = [row for row in current_processes(deployment) if row.device is not None and row.port is not None]
    masters = {row.replica_id: row.device for row in placed if row.kind == ManagedProcess.Kinds.MASTER}
    found = []
    for row in placed:
        master = masters.get(row.replica_id)
        if row.kind == ManagedProcess.Kinds.WORKER and row.device is not None and master is not None:
            address, from_address = row.device.address, master.address
            if address and from_address:
                found.append(WorkerPort(row.device.name, address, row.port or 0, from_address))
    return found


def current_processes(deployment: Deployment) -> list[ManagedProcess]:
    """The newest process of each replica on each device, in the plan's order."""
    rows = ManagedProcess.objects.filter(replica__deployment=deployment).select_related("device", "replica")
    newest = {(row.replica_id, row.device_id): row for row in rows.order_by("pk")}
    return sorted(newest.values(), key=lambda row: (row.replica.index, row.kind, row.pk))


def earlier_ends(deployment: Deployment) -> list[ManagedProcess]:
    """Processes that ended by themselves, or were ended since they hung, and were replaced; the latest first."""
    current = {process.pk for process in current_processes(deployment)}
    faulty = Q(state=ManagedProcess.States.EXITED) | Q(exit_reason__startswith=HUNG)
    rows = ManagedProcess.objects.filter(faulty, replica__deployment=deployment)
    ended = rows.exclude(exit_reason="").select_related("device", "replica__deployment").order_by("-ended_at")
    return [row for row in ended[:SHOWN_ENDS] if row.pk not in current]

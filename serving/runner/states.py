"""Transitions of deployments, replicas and processes; whatever changes a route tells the gateways."""

from __future__ import annotations

from django.db.models import QuerySet
from django.utils import timezone

from serving import events
from serving.core.commands import ProcessCommand
from serving.models import Deployment, ManagedProcess, Replica
from serving.processes.lifecycle import Started

ENDED = (ManagedProcess.States.EXITED, ManagedProcess.States.STOPPED)
HUNG = "it hung"  # begins the reason of one that ran and was ended since it made no tokens
SERVING = (Replica.States.READY, Replica.States.DRAINING)


def set_replica(replica: Replica, state: Replica.States, reason: str = "") -> None:
    """Save a state; the gateways are told when the replica begins or ends to take requests."""
    changes_routes = state != replica.state and Replica.States.READY in (state, replica.state)
    replica.state, replica.state_reason = state, reason
    if state == Replica.States.READY:
        replica.ready_at = timezone.now()
    replica.save(update_fields=["state", "state_reason", "ready_at"])
    if changes_routes:
        events.publish_routes()


def set_endpoint(replica: Replica, host: str, port: int) -> None:
    replica.host, replica.port = host, port
    replica.save(update_fields=["host", "port"])


def set_deployment(deployment: Deployment, state: Deployment.States, reason: str = "") -> None:
    deployment.state, deployment.state_reason = state, reason
    over = state in (Deployment.States.STOPPED, Deployment.States.FAILED)
    deployment.ended_at = timezone.now() if over else None
    deployment.save(update_fields=["state", "state_reason", "ended_at"])
    events.publish_routes()


def note_wanted(process: ManagedProcess) -> None:
    """Where the process is to be, written before the host is touched."""
    process.state = ManagedProcess.States.WANTED
    process.save(update_fields=["port", "run_folder", "slot_folder", "state"])


def note_argv(process: ManagedProcess, command: ProcessCommand) -> None:
    process.argv = list(command.argv)
    process.save(update_fields=["argv"])


def note_started(process: ManagedProcess, started: Started) -> None:
    process.pid, process.start_ticks, process.boot_id = started.pid, started.start_ticks, started.boot_id
    process.state, process.started_at = ManagedProcess.States.STARTED, timezone.now()
    process.exit_reason, process.ended_at = "", None
    process.save(
        update_fields=["pid", "start_ticks", "boot_id", "state", "started_at", "exit_reason", "ended_at"]
    )


def note_adopted(process: ManagedProcess) -> bool:
    """A process that runs already becomes a row, or the row it had is brought back; whether it is a new one."""
    process.state, process.started_at = ManagedProcess.States.STARTED, timezone.now()
    known = ManagedProcess.objects.filter(marker=process.marker).first()
    if known is not None:
        process.pk, process.started_at = known.pk, known.started_at or process.started_at
    process.save()
    return known is None


def age_seconds(process: ManagedProcess) -> float:
    """Since its start on the host."""
    assert process.started_at is not None, "started"
    return (timezone.now() - process.started_at).total_seconds()


def note_ended(process: ManagedProcess, state: ManagedProcess.States, reason: str = "") -> None:
    process.state, process.ended_at = state, timezone.now()
    process.exit_reason = reason or process.exit_reason
    process.save(update_fields=["state", "ended_at", "exit_reason"])


def note_hung(processes: list[ManagedProcess], reason: str) -> None:
    """The master of these makes no tokens any more; it keeps the reason when it has been ended for that."""
    for process in processes:
        if process.kind == ManagedProcess.Kinds.MASTER:
            process.exit_reason = f"{HUNG}: {reason[:1].lower()}{reason[1:]}"
            process.save(update_fields=["exit_reason"])


def note_removed(process: ManagedProcess) -> None:
    """Neither process nor folder is left; one that had ended by itself keeps saying so."""
    if process.state != ManagedProcess.States.EXITED:
        process.state, process.ended_at = ManagedProcess.States.STOPPED, timezone.now()
    process.run_folder = process.slot_folder = ""
    process.save(update_fields=["state", "ended_at", "run_folder", "slot_folder"])


def left_on_hosts() -> QuerySet[ManagedProcess]:
    """Processes that may run, and the folders of those that ended by themselves."""
    rows = ManagedProcess.objects.exclude(state=ManagedProcess.States.STOPPED)
    return rows.exclude(state=ManagedProcess.States.EXITED, run_folder="")


def note_seen(process: ManagedProcess, state: ManagedProcess.States) -> None:
    if process.state != state:
        process.state = state
        process.save(update_fields=["state"])


def note_stopped(deployment: Deployment) -> None:
    """What was being stopped is stopped: nothing of it is left on any host."""
    stopping = deployment.replicas.filter(state=Replica.States.STOPPING)
    stopping.update(state=Replica.States.STOPPED, state_reason="")
    set_deployment(deployment, Deployment.States.STOPPED)


def settle(deployment: Deployment) -> None:
    """The deployment's state from its replicas' states."""
    replicas = list(deployment.replicas.all())
    ready = [replica for replica in replicas if replica.state == Replica.States.READY]
    if len(ready) == len(replicas):
        wanted_state, reason = Deployment.States.RUNNING, ""
    else:
        wanted_state = Deployment.States.DEGRADED if ready else Deployment.States.FAILED
        reasons = [
            f"{replica.label}: {replica.state_reason or replica.get_state_display()}"
            for replica in replicas
            if replica not in ready
        ]
        reason = " ".join(reasons)
    if (deployment.state, deployment.state_reason) != (wanted_state, reason):
        deployment.state, deployment.state_reason = wanted_state, reason
        deployment.save(update_fields=["state", "state_reason"])

"""Compare what is wanted with what runs, every few seconds, and start work on the difference."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from datetime import timedelta

from asgiref.sync import async_to_sync
from django.db.models import QuerySet
from django.utils import timezone

from inventory.models import Device
from inventory.remote import Connection, RemoteError, kept
from inventory.remote.kept import Question
from jobs import services as jobs
from jobs.core.errors import Cancelled
from jobs.models import Job, State
from serving import events
from serving.core import backoff, startup
from serving.core.commands import LOG_FILE
from serving.models import Deployment, Launch, ManagedProcess, Replica
from serving.processes import observe
from serving.processes.observe import Observation
from serving.runner import liveness, states, sweep
from serving.runner.operate import TASK, bring_back, give_up, stopped_for

log = logging.getLogger(__name__)

LOG_LIMIT_BYTES = 64 * 2**20
KEPT_LOG_LINES = 60
STEADY_AFTER = timedelta(minutes=10)
LOOK_SECONDS, SILENT_LOOK_SECONDS = 25.0, 5.0
PASS_LIMIT_SECONDS = 90.0
PASS_SECONDS = 5
SWEEP_MINUTES = 10
RETRY_AFTER = timedelta(minutes=1)
UNFINISHED = (Replica.States.STARTING, Replica.States.LOADING, Replica.States.DRAINING)

Kinds, States = ManagedProcess.Kinds, ManagedProcess.States
Look = Observation | RemoteError


@dataclass
class Host:
    device: Device
    processes: list[ManagedProcess] = field(default_factory=list)


def reconcile_alone() -> None:
    """One pass, unless one is under way: a silent host can make a pass longer than the time between two."""
    with events.only_one("reconcile", PASS_LIMIT_SECONDS) as is_alone:
        if is_alone:
            reconcile()
            if is_sweep_due():
                sweep.sweep()


def is_sweep_due() -> bool:
    """In one pass of every ten minutes."""
    now = timezone.now()
    return now.minute % SWEEP_MINUTES == 0 and now.second < PASS_SECONDS


def reconcile() -> None:
    """One pass. Deployments that a job is changing are left to that job."""
    end_lost_launches()
    busy = being_changed()
    hosts: dict[int, Host] = {}
    for row in live_processes():
        if row.replica.deployment.subject not in busy and row.device is not None:
            hosts.setdefault(row.device.pk, Host(row.device)).processes.append(row)
    looks = look_at(list(hosts.values()))
    busy |= being_changed()
    rows = [
        row for host in hosts.values() for row in host.processes if row.replica.deployment.subject not in busy
    ]
    for row in rows:
        assert row.device is not None, "grouped by device"
        judge(row, looks[row.device.pk])
    hung = test_suspects(rows, looks)
    busy |= being_changed()
    rests = {"state": Deployment.States.STOPPED, "wanted": Deployment.Wanted.STOPPED}
    for deployment in Deployment.objects.exclude(**rests).select_related("model"):
        if deployment.subject not in busy:
            act(deployment, hung)


def being_changed() -> set[str]:
    """Subjects of the deployments that a job changes, those that it is stopping for its own included."""
    active = list(Job.objects.active().filter(kind=TASK))
    return {job.subject for job in active} | {other.subject for job in active for other in stopped_for(job)}


def end_lost_launches() -> None:
    """What a launch does by itself at its end, for those whose worker was lost."""
    under_way = Launch.objects.filter(stage__in=[Launch.Stages.PREPARING, Launch.Stages.PLANNING])
    under_way.filter(job__state__in=[State.CANCELLED, State.INTERRUPTED]).update(stage=Launch.Stages.ENDED)


def test_suspects(rows: list[ManagedProcess], looks: dict[int, Look]) -> dict[int, str]:
    """Ready replicas that make no token any more, among those with a reason to ask."""
    accused = set(events.take_suspects())
    for row in rows:
        look = looks[row.device_id or 0]
        seen = (
            None
            if isinstance(look, RemoteError)
            else look.find(row.marker, row.pid, row.start_ticks, row.boot_id)
        )
        if row.state == States.UNKNOWN or (seen is not None and seen.is_stopped):
            accused.add(row.replica_id)
    ready = list(Replica.objects.filter(pk__in=accused, state=Replica.States.READY))
    return async_to_sync(liveness.hung)(ready)


def live_processes() -> list[ManagedProcess]:
    rows = ManagedProcess.objects.exclude(state__in=[*states.ENDED, States.WANTED]).exclude(device=None)
    return list(rows.select_related("device", "device__identity", "replica", "replica__deployment"))


def look_at(hosts: list[Host]) -> dict[int, Look]:
    """What runs on each host, all at once; a host that does not answer gives its error instead."""
    looks = kept.ask([question(host) for host in hosts])
    return {host.device.pk: look for host, look in zip(hosts, looks, strict=True)}


def question(host: Host) -> Question[Observation]:
    async def look(connection: Connection) -> Observation:
        return await look_closely(connection, host)

    known_silent = host.device.state in (Device.States.SUSPECT, Device.States.LOST)
    return Question(host.device, look, SILENT_LOOK_SECONDS if known_silent else LOOK_SECONDS)


async def look_closely(connection: Connection, host: Host) -> Observation:
    """The processes, the last words of those that are gone, and once a minute a look at the size of the logs."""
    seen = await observe.observe(connection)
    trims = timezone.now().second < PASS_SECONDS
    for row in host.processes:
        path = f"{row.run_folder}/{LOG_FILE}"
        if seen.find(row.marker, row.pid, row.start_ticks, row.boot_id) is None:
            row.exit_reason = await observe.log_tail(connection, path, KEPT_LOG_LINES)
        elif trims:
            await observe.trim_log(connection, path, LOG_LIMIT_BYTES)
    return seen


def judge(process: ManagedProcess, look: Look) -> None:
    """Write down what was seen of one process; a silent host proves nothing about it."""
    if isinstance(look, RemoteError):
        states.note_seen(process, States.UNKNOWN)
    elif look.find(process.marker, process.pid, process.start_ticks, process.boot_id) is not None:
        states.note_seen(process, States.READY)
    else:
        rebooted = bool(process.boot_id) and process.boot_id != look.boot_id
        reason = f"{process.device} was restarted." if rebooted else startup.explain_end(process.exit_reason)
        states.note_ended(process, States.EXITED, f"{reason}\n\n{process.exit_reason}".strip())


def act(deployment: Deployment, hung: dict[int, str]) -> None:
    """Start the one job that brings the deployment nearer to what is wanted, if there is anything to do."""
    roll_out = cancelled_roll_out(deployment)
    if roll_out is not None:
        call_off(deployment, roll_out)
        return
    if deployment.wanted == Deployment.Wanted.STOPPED:
        if left_of(deployment).exists():
            if not failed_lately(deployment):
                start(deployment, {"action": "stop"}, f"Stop {deployment}")
        elif deployment.state == Deployment.States.STOPPING:
            states.note_stopped(deployment)
        return
    replicas = list(deployment.replicas.all())
    if all(replica.state in (Replica.States.WAITING, Replica.States.STOPPED) for replica in replicas):
        start(deployment, {"action": "deploy"}, f"Start {deployment} again")
        return
    stopping = next((replica for replica in replicas if replica.state == Replica.States.STOPPING), None)
    if stopping is not None and not failed_lately(deployment):
        start(deployment, {"action": "rest", "replica": stopping.index}, f"Stop {stopping.label}")
        return
    for replica in replicas:
        watch(replica, hung.get(replica.pk, ""))
    states.settle(deployment)
    for replica in replicas:
        if replica.state == Replica.States.FAILED and may_restart(replica):
            replica.restarts += 1
            replica.save(update_fields=["restarts"])
            start(deployment, {"action": "restart", "replica": replica.index}, f"Restart {replica.label}")
            return


def cancelled_roll_out(deployment: Deployment) -> Job | None:
    """Its roll-out, cancelled when no worker was there to give it up and to stop what it had started."""
    last = Job.objects.about(deployment.subject).filter(kind=TASK).first()
    if deployment.state != Deployment.States.STARTING or last is None or last.state != State.CANCELLED:
        return None
    return last if last.params["action"] == "deploy" else None


def call_off(deployment: Deployment, roll_out: Job) -> None:
    """Stop what the roll-out has started; only then has what it replaced the room to start again."""
    stopped, is_left = stopped_for(roll_out), left_of(deployment).exists()
    if not is_left:
        bring_back(stopped, deployment, "was cancelled")
    give_up(deployment, Cancelled())
    begun = deployment.replicas.filter(state__in=UNFINISHED)
    begun.update(state=Replica.States.STOPPING if is_left else Replica.States.STOPPED, state_reason="")
    if is_left:
        states.set_deployment(deployment, Deployment.States.STOPPING)
        params: dict[str, object] = {"action": "stop", "brings_back": [other.pk for other in stopped]}
        start(deployment, params, f"Stop {deployment}")


def left_of(deployment: Deployment) -> QuerySet[ManagedProcess]:
    return states.left_on_hosts().filter(replica__deployment=deployment).exclude(device=None)


def failed_lately(deployment: Deployment) -> bool:
    """Whether the last job of this deployment failed so recently that trying again would only repeat it."""
    last = Job.objects.about(deployment.subject).filter(kind=TASK).first()
    if last is None or last.state != State.FAILED or last.ended_at is None:
        return False
    return timezone.now() - last.ended_at < RETRY_AFTER


def watch(replica: Replica, hangs: str) -> None:
    """A replica with a dead or hung member is down as a whole; one with a silent host says so."""
    latest = newest(list(replica.processes.select_related("device").order_by("pk")))
    dead = [process for process in latest if process.state == States.EXITED]
    dead.sort(
        key=lambda process: process.kind == Kinds.MASTER
    )  # it follows a lost worker, which is the cause
    if replica.state == Replica.States.READY and dead:
        cause = dead[0].exit_reason.split("\n\n")[0]
        reason = f"{dead[0].device}: {dead[0].get_kind_display()} ended: {cause}"
        states.set_replica(replica, Replica.States.FAILED, reason)
        return
    if replica.state == Replica.States.READY and hangs:
        reason = (
            f"{hangs.rstrip('.')}: {'it, a worker or the link to it' if len(latest) > 1 else 'it'} hangs."
        )
        states.note_hung(latest, reason)
        states.set_replica(replica, Replica.States.FAILED, reason)
    if replica.state in UNFINISHED:
        states.set_replica(replica, Replica.States.FAILED, "What was being done to it was interrupted.")
    if replica.state != Replica.States.READY:
        return
    silent = sorted({str(process.device) for process in latest if process.state == States.UNKNOWN})
    reason = f"{', '.join(silent)} does not answer, so its processes cannot be seen." if silent else ""
    if replica.state_reason != reason:
        states.set_replica(replica, Replica.States.READY, reason)
    elif replica.restarts and replica.ready_at and timezone.now() - replica.ready_at > STEADY_AFTER:
        replica.restarts = 0
        replica.save(update_fields=["restarts"])


def newest(processes: list[ManagedProcess]) -> list[ManagedProcess]:
    """The latest process of each device: earlier ones belong to earlier starts."""
    return list({process.device_id: process for process in processes}.values())


def may_restart(replica: Replica) -> bool:
    last = replica.processes.exclude(ended_at=None).order_by("-ended_at").first()
    waited = (timezone.now() - last.ended_at).total_seconds() if last and last.ended_at else float("inf")
    return backoff.is_due(replica.restarts, waited)


def start(deployment: Deployment, params: dict[str, object], label: str) -> None:
    try:
        jobs.start(
            TASK, {"deployment": deployment.pk, **params}, None, label=label, subject=deployment.subject
        )
    except jobs.AlreadyRunning:
        log.info("%s is being changed already", deployment)

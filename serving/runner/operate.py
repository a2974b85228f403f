"""One change of one deployment at a time: deploy, stop, restart, drain or adopt a replica."""

from __future__ import annotations

import time
from collections.abc import Iterable

from inventory import library
from inventory.models import Device
from jobs import runner as jobs
from jobs.core.errors import Cancelled, JobFailed
from jobs.models import Job
from jobs.progress import Progress
from serving.models import Deployment, Launch, Replica
from serving.runner import drain, preflight, states
from serving.runner.adopt import adopt
from serving.runner.roll_out import masters_without_model, roll_out, take_down, waiting_for

TASK = "serving.operate"
COPY_SHARE = 0.6  # of a roll-out that has to copy the model first
RESTART_RESETS_SECONDS = 600.0


def operate(job_id: int) -> None:
    jobs.execute(job_id, change)


def change(progress: Progress) -> None:
    params = progress.job.params
    deployment = Deployment.objects.select_related("model", "plan_run").get(pk=params["deployment"])
    if params["action"] == "deploy":
        deploy(progress, deployment, params.get("replaces", []), beside=params.get("beside", False))
        return
    if params["action"] == "stop":
        stop(progress, deployment, params.get("brings_back", []))
        return
    replica = deployment.replicas.get(index=params["replica"])
    if params["action"] == "adopt":
        take_over(progress, deployment, replica)
    elif params["action"] == "rest":
        rest(progress, deployment, replica)
    else:
        restart(progress, deployment, replica)


def deploy(progress: Progress, deployment: Deployment, replaces: list[int], *, beside: bool) -> None:
    """Start all replicas; what is replaced is stopped before, or after when memory allows both at once."""
    if deployment.wanted == Deployment.Wanted.STOPPED:
        raise JobFailed("This deployment was stopped before it began.")
    old = list(Deployment.objects.filter(pk__in=replaces).exclude(pk=deployment.pk))
    masters = masters_without_model(deployment)
    for device in masters:
        progress.step(f"copy:{device.pk}", f"Copy the model to {device}")
    if old and not beside:
        progress.step(preflight.KEY, "Check every device before anything is stopped")
    for other in old:
        progress.step(f"stop:{other.pk}", f"Stop {other}, which this one replaces")
    states.set_deployment(deployment, Deployment.States.STARTING)
    try:
        copied = COPY_SHARE if masters else 0.0
        with progress.span(0.0, copied):
            copy_model(progress, deployment, masters)
        if old and not beside:
            freed = Replica.objects.filter(deployment__in=old)
            preflight.preflight(progress, deployment, deployment.replicas.all(), freed)
            replace(progress, old)
        with progress.span(copied, 1.0):
            roll_out(progress, deployment, deployment.replicas.exclude(state=Replica.States.READY))
        heed_late_cancel(progress, deployment)
    except (Cancelled, JobFailed) as error:
        undo(progress, deployment, error)
        raise
    states.set_deployment(deployment, Deployment.States.RUNNING)
    Launch.objects.filter(deployment=deployment).update(stage=Launch.Stages.READY)
    if beside:
        try:
            replace(progress, old)
        except Cancelled as error:
            undo(progress, deployment, error)
            raise
    progress.report(f"{deployment.name} answers", 1.0)


def copy_model(progress: Progress, deployment: Deployment, masters: list[Device]) -> None:
    """Before anything is stopped, so that a long copy costs nobody an answer."""
    for number, device in enumerate(masters):
        key = f"copy:{device.pk}"
        progress.start_step(key)
        try:
            with progress.span(number / len(masters), (number + 1) / len(masters)):
                file = library.copy_model(deployment.model, device, progress)
        except JobFailed as error:
            progress.fail_step(key, str(error))
            raise
        progress.end_step(key, file.path)


def heed_late_cancel(progress: Progress, deployment: Deployment) -> None:
    """Raise Cancelled for a cancel or a stop of the last second, of which no heartbeat has told yet."""
    deployment.refresh_from_db(fields=["wanted"])
    cancelled = Job.objects.filter(pk=progress.job.pk, cancel_requested=True)
    if deployment.wanted == Deployment.Wanted.STOPPED or cancelled.exists():
        raise Cancelled


def undo(progress: Progress, deployment: Deployment, error: Exception) -> None:
    """Stop what a roll-out has started, and bring back what it had stopped."""
    is_cancel = isinstance(error, Cancelled)
    if is_cancel:
        progress.report(f"Stopping what was started of {deployment}")
    guilty = [] if is_cancel else faulty_replicas(progress, deployment)
    take_down(progress, guilty, str(error))
    take_down(progress, deployment.replicas.exclude(pk__in=[replica.pk for replica in guilty]), "")
    stopped = stopped_for(progress.job)
    for other in stopped:
        progress.report(f"Rolling back: {other} is to be started again")
    bring_back(stopped, deployment, "was cancelled" if is_cancel else "failed")
    give_up(deployment, error)


def faulty_replicas(progress: Progress, deployment: Deployment) -> list[Replica]:
    """Those with a line of the checklist that failed; the others end with them and are not to blame."""
    faulty = {key.partition(":")[0] for key in progress.failed_steps()}
    return [replica for replica in deployment.replicas.all() if str(replica.index) in faulty]


def give_up(deployment: Deployment, error: Exception) -> None:
    deployment.wanted = Deployment.Wanted.STOPPED
    deployment.save(update_fields=["wanted"])
    Launch.objects.filter(deployment=deployment).update(stage=Launch.Stages.ENDED)
    if isinstance(error, Cancelled):
        states.set_deployment(deployment, Deployment.States.STOPPED, "The roll-out was cancelled.")
    else:
        states.set_deployment(deployment, Deployment.States.FAILED, str(error))


def replace(progress: Progress, old: list[Deployment]) -> None:
    for deployment in old:
        key = f"stop:{deployment.pk}"
        progress.start_step(key, "waiting for running answers to end")
        deployment.wanted = Deployment.Wanted.STOPPED
        deployment.save(update_fields=["wanted"])
        shut_down(progress, deployment)
        progress.end_step(key)


def stopped_for(roll_out: Job) -> list[Deployment]:
    """Deployments that ran until this roll-out stopped them, or began to; not those that a person stopped since."""
    ids = roll_out.params.get("replaces", [])
    replaced = Deployment.objects.filter(pk__in=ids, wanted=Deployment.Wanted.STOPPED)
    own_stops = Job.objects.filter(kind=TASK, params__action="stop", pk__gt=roll_out.pk)
    return [other for other in replaced if not own_stops.filter(subject=other.subject).exists()]


def bring_back(stopped: Iterable[Deployment], instead_of: Deployment, how_it_ended: str) -> None:
    """Roll back: the reconciler starts again what is wanted and not there."""
    for deployment in stopped:
        deployment.wanted = Deployment.Wanted.RUNNING
        deployment.save(update_fields=["wanted"])
        reason = f"Started again, since the roll-out of {instead_of} {how_it_ended}."
        states.set_deployment(deployment, Deployment.States.STARTING, reason)


def stop(progress: Progress, deployment: Deployment, brings_back: list[int]) -> None:
    """Stop all of it; then what a roll-out of it that was cancelled had stopped may start again."""
    progress.step("drain", "Let running answers end")
    progress.step("stop", "Stop all processes and remove their files")
    progress.start_step("drain")
    failure = deployment.state_reason if deployment.state == Deployment.States.FAILED else ""
    states.set_deployment(deployment, Deployment.States.STOPPING)
    began = time.monotonic()
    how = drain.drain(progress, deployment.replicas.all())
    progress.end_step("drain", f"{time.monotonic() - began:.0f} s; {how}")
    progress.start_step("stop")
    progress.report("Stopping the processes and removing their files")
    try:
        end(progress, deployment)
    finally:
        bring_back(Deployment.objects.filter(pk__in=brings_back), deployment, "was cancelled")
    progress.end_step("stop")
    progress.report(f"{deployment} is stopped; {how}", 1.0)
    if failure:
        states.set_deployment(deployment, Deployment.States.FAILED, failure)


def shut_down(progress: Progress, deployment: Deployment) -> None:
    states.set_deployment(deployment, Deployment.States.STOPPING)
    how = drain.drain(progress, deployment.replicas.all())
    progress.report(f"Stopping {deployment}; {how}")
    end(progress, deployment)


def end(progress: Progress, deployment: Deployment) -> None:
    unreached = take_down(progress, deployment.replicas.all(), "")
    if unreached:
        states.set_deployment(deployment, Deployment.States.STOPPING, waiting_for(unreached))
        raise JobFailed(waiting_for(unreached))
    states.set_deployment(deployment, Deployment.States.STOPPED)


def restart(progress: Progress, deployment: Deployment, replica: Replica) -> None:
    """Stop and start a whole replica; the others go on serving, and itself when it could not start again."""
    if replica.state == Replica.States.READY:
        progress.step(preflight.KEY, "Check its devices before it is stopped")
        preflight.preflight(progress, deployment, [replica], [replica])
    fault = replica.state_reason if replica.state == Replica.States.FAILED else ""
    empty(progress, replica, fault)
    take_down(progress, [replica], fault)
    progress.end_step("stop")
    if deployment.wanted == Deployment.Wanted.STOPPED:
        return
    try:
        roll_out(progress, deployment, [replica])
    finally:
        settle(deployment)
    progress.report(f"{replica.label} is ready", 1.0)


def rest(progress: Progress, deployment: Deployment, replica: Replica) -> None:
    """Stop one replica and leave it stopped; the others go on serving."""
    how = empty(progress, replica)
    unreached = take_down(progress, [replica], "")
    settle(deployment)
    if unreached:
        raise JobFailed(waiting_for(unreached))
    progress.end_step("stop")
    progress.report(f"{replica.label} is stopped; {how}", 1.0)


def take_over(progress: Progress, deployment: Deployment, replica: Replica) -> None:
    """A replica that runs without being managed becomes one of ours; the others are left as they are."""
    try:
        adopt(progress, deployment, replica)
    finally:
        if deployment.wanted == Deployment.Wanted.RUNNING:
            settle(deployment)


def empty(progress: Progress, replica: Replica, fault: str = "") -> str:
    """Let the answers of one replica end, and begin to stop it; `fault` is why it has failed."""
    progress.step("drain", f"Let running answers of {replica.label} end")
    progress.step("stop", f"Stop {replica.label}")
    progress.start_step("drain")
    how = drain.drain(progress, [replica])
    progress.end_step("drain", f"{how}. It failed: {fault}" if fault else how)
    progress.start_step("stop")
    return how


def settle(deployment: Deployment) -> None:
    states.settle(deployment)
    states.set_deployment(deployment, Deployment.States(deployment.state), deployment.state_reason)

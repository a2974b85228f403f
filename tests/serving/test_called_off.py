"""Work that is cancelled, also when its worker is dead: what it started ends, what it replaced comes back."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.test import Client

from inventory.models import Device
from jobs.core.errors import Cancelled
from jobs.models import Job, JobStep, State
from jobs.progress import Progress
from serving.models import Deployment, Launch, ManagedProcess, Replica
from serving.runner import operate, reconcile
from serving.runner.operate import TASK
from serving.services import consequences, deployments
from tests.conftest import wait_until
from tests.serving.conftest import Laboratory
from tests.serving.test_pages import deployment

__all__ = ["deployment"]


@pytest.fixture
def replaced(deployment: Deployment) -> Deployment:
    """It ran until the roll-out of another plan stopped it."""
    old = Deployment.objects.create(
        model=deployment.model,
        name=deployment.name,
        plan=deployment.plan,
        cluster=deployment.cluster,
        context_tokens=deployment.context_tokens,
        wanted=Deployment.Wanted.STOPPED,
        state=Deployment.States.STOPPED,
    )
    Replica.objects.create(deployment=old, index=0, role="decode", slots=2, state="stopped", api_key="k" * 20)
    return old


def rolling_out(deployment: Deployment, replaced: Deployment, state: State) -> Job:
    """The roll-out of a deployment that loads its model, after it had stopped another one."""
    deployment.replicas.update(state=Replica.States.LOADING)
    Deployment.objects.filter(pk=deployment.pk).update(state=Deployment.States.STARTING)
    deployment.refresh_from_db()
    params = {"deployment": deployment.pk, "action": "deploy", "replaces": [replaced.pk], "beside": False}
    return Job.objects.create(kind=TASK, subject=deployment.subject, params=params, state=state)


@pytest.fixture
def called_off(deployment: Deployment, replaced: Deployment) -> Deployment:
    """Its roll-out was cancelled and left as it stood."""
    rolling_out(deployment, replaced, State.CANCELLED)
    return deployment


def process_of(deployment: Deployment, state: ManagedProcess.States) -> ManagedProcess:
    device = Device.objects.create(name="box-1", connection=Device.Connections.LOCAL)
    replica = deployment.replicas.all()[0]
    return ManagedProcess.objects.create(
        replica=replica, device=device, kind="master", marker="m", state=state, run_folder="/nowhere"
    )


def is_wanted(deployment: Deployment) -> bool:
    deployment.refresh_from_db()
    return deployment.wanted == Deployment.Wanted.RUNNING


def test_roll_out_that_was_called_off_does_not_come_back(called_off: Deployment) -> None:
    reconcile.reconcile()
    called_off.refresh_from_db()
    assert called_off.wanted == Deployment.Wanted.STOPPED
    assert called_off.state == Deployment.States.STOPPED
    assert {replica.state for replica in called_off.replicas.all()} == {Replica.States.STOPPED}
    assert not Job.objects.active().exists()


def test_what_it_had_stopped_is_started_again(called_off: Deployment, replaced: Deployment) -> None:
    reconcile.reconcile()
    assert is_wanted(replaced)
    assert replaced.state_reason == f"Started again, since the roll-out of {called_off} was cancelled."
    reconcile.reconcile()
    assert Job.objects.active().get().params == {"deployment": replaced.pk, "action": "deploy"}


def test_what_a_person_stopped_meanwhile_stays_stopped(called_off: Deployment, replaced: Deployment) -> None:
    Job.objects.create(
        kind=TASK,
        subject=replaced.subject,
        params={"deployment": replaced.pk, "action": "stop"},
        state=State.SUCCEEDED,
    )
    reconcile.reconcile()
    assert not is_wanted(replaced)


@pytest.mark.django_db(transaction=True)
def test_what_a_called_off_roll_out_has_started_is_stopped_before_the_old_comes_back(
    called_off: Deployment, replaced: Deployment
) -> None:
    process_of(called_off, ManagedProcess.States.STARTED)
    reconcile.reconcile()
    stopping = Job.objects.active().get()
    assert stopping.params == {"deployment": called_off.pk, "action": "stop", "brings_back": [replaced.pk]}
    assert not is_wanted(replaced), "both do not fit in memory"
    ManagedProcess.objects.all().delete()
    operate.operate(stopping.pk)
    assert is_wanted(replaced)


def test_stop_while_the_worker_is_dead_brings_the_old_back(
    deployment: Deployment, replaced: Deployment
) -> None:
    rolling_out(deployment, replaced, State.RUNNING)
    stopping = deployments.stop(deployment, None)
    assert stopping.params["brings_back"] == [replaced.pk]


def test_a_cancel_of_the_last_second_is_heeded(deployment: Deployment, replaced: Deployment) -> None:
    job = rolling_out(deployment, replaced, State.RUNNING)
    operate.heed_late_cancel(Progress(job), deployment)
    Job.objects.filter(pk=job.pk).update(cancel_requested=True)
    with pytest.raises(Cancelled):
        operate.heed_late_cancel(Progress(job), deployment)


def test_a_plan_that_a_roll_out_is_stopping_is_left_to_it(
    deployment: Deployment, replaced: Deployment
) -> None:
    job = rolling_out(deployment, replaced, State.RUNNING)
    Deployment.objects.filter(pk=replaced.pk).update(state=Deployment.States.STOPPING)
    process_of(replaced, ManagedProcess.States.STARTED)
    reconcile.reconcile()
    assert Job.objects.active().get() == job, "a second stop would not wait for the running answers"


def test_what_is_wanted_and_was_seen_stopped_is_started(replaced: Deployment) -> None:
    Deployment.objects.filter(pk=replaced.pk).update(wanted=Deployment.Wanted.RUNNING)
    reconcile.reconcile()
    assert Job.objects.active().get().params == {"deployment": replaced.pk, "action": "deploy"}


def test_the_question_before_a_stop_says_what_becomes_of_the_replaced_plan(
    admin_client: Client, deployment: Deployment, replaced: Deployment
) -> None:
    assert "Running answers get 30 s to end" in consequences.stop_text(deployment)
    rolling_out(deployment, replaced, State.RUNNING)
    words = f"{replaced}, which it replaces, goes on, or is started again when it was stopped already."
    assert words in admin_client.get(f"/deployments/{deployment.pk}/").text


def test_the_page_says_what_became_of_the_replaced_plan(
    admin_client: Client, called_off: Deployment, replaced: Deployment
) -> None:
    job = Job.objects.get(subject=called_off.subject)
    step: dict[str, Any] = {"job": job, "position": 0, "label": "Stop", "started_at": job.created_at}
    JobStep.objects.create(key=f"stop:{replaced.pk}", **step)
    reconcile.reconcile()
    page = f"/deployments/{called_off.pk}/live/"
    words = f"{replaced} was stopped for this one and is to be started again; requests for it wait."
    assert words in admin_client.get(page).text
    Deployment.objects.filter(pk=replaced.pk).update(state=Deployment.States.RUNNING)
    assert f"{replaced} was to be stopped for this one and goes on." in admin_client.get(page).text


def test_cancelled_roll_out_that_had_stopped_the_old_plan_starts_it_again(laboratory: Laboratory) -> None:
    first = laboratory.deploy(laboratory.single())
    plan = laboratory.plan(laboratory.single())
    second = deployments.deploy(plan, laboratory.cluster(), laboratory.model, None)
    worker = threading.Thread(target=laboratory.work)
    worker.start()
    began = ManagedProcess.objects.filter(replica__deployment=second, state="started")
    wait_until(began.exists, "the new plan's process was started")
    deployments.stop(second, None)
    worker.join()
    reconcile.reconcile()
    laboratory.work()
    second.refresh_from_db()
    assert is_wanted(first)
    assert (first.state, second.state) == (Deployment.States.RUNNING, Deployment.States.STOPPED)
    assert deployments.brought_back(second) == [
        f"{first} was stopped for this one and was started again: it runs."
    ]


def test_launch_whose_worker_was_lost_has_ended(deployment: Deployment) -> None:
    job = Job.objects.create(kind="serving.launch", label="Plan and deploy", state=State.CANCELLED)
    launch = Launch.objects.create(job=job, model=deployment.model, workload={}, policy={})
    reconcile.reconcile()
    launch.refresh_from_db()
    assert launch.stage == Launch.Stages.ENDED

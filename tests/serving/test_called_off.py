"""Work that was cancelled when its worker was dead: the next pass does what the worker would have done."""

from __future__ import annotations

import pytest

from inventory.models import Device
from jobs.models import Job, State
from serving.models import Deployment, Launch, ManagedProcess, Replica
from serving.runner import reconcile
from serving.runner.operate import TASK
from tests.serving.test_pages import deployment

__all__ = ["deployment"]


@pytest.fixture
def called_off(deployment: Deployment) -> Deployment:
    """Its roll-out was cancelled and left as it stood."""
    deployment.replicas.update(state=Replica.States.LOADING)
    Deployment.objects.filter(pk=deployment.pk).update(state=Deployment.States.STARTING)
    params = {"deployment": deployment.pk, "action": "deploy"}
    Job.objects.create(kind=TASK, subject=deployment.subject, params=params, state=State.CANCELLED)
    return deployment


def test_roll_out_that_was_called_off_does_not_come_back(called_off: Deployment) -> None:
    reconcile.reconcile()
    called_off.refresh_from_db()
    assert called_off.wanted == Deployment.Wanted.STOPPED
    assert called_off.state == Deployment.States.STOPPED
    assert {replica.state for replica in called_off.replicas.all()} == {Replica.States.STOPPED}
    assert not Job.objects.active().exists()


def test_what_a_called_off_roll_out_has_started_is_stopped(called_off: Deployment) -> None:
    device = Device.objects.create(name="box-1", connection=Device.Connections.LOCAL)
    replica = called_off.replicas.all()[0]
    ManagedProcess.objects.create(
        replica=replica, device=device, kind="master", marker="m", state="started", run_folder="/nowhere"
    )
    reconcile.reconcile()
    assert Job.objects.active().get().params == {"deployment": called_off.pk, "action": "stop"}


def test_launch_whose_worker_was_lost_has_ended(deployment: Deployment) -> None:
    job = Job.objects.create(kind="serving.launch", label="Plan and deploy", state=State.CANCELLED)
    launch = Launch.objects.create(job=job, model=deployment.model, workload={}, policy={})
    reconcile.reconcile()
    launch.refresh_from_db()
    assert launch.stage == Launch.Stages.ENDED

"""Pages offer what can be had now, and call nothing ready or stopped that is not."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from inventory.models import Device
from jobs.models import Job, JobStep, State
from jobs.progress import Progress
from serving.models import Deployment, Launch, ManagedProcess, Replica
from serving.runner import reconcile
from tests.serving.test_pages import deployment

__all__ = ["deployment"]

PLAYGROUND = "Open playground"


def text_of(client: Client, path: str) -> str:
    return client.get(path).content.decode()


@pytest.mark.parametrize(
    ("states", "is_offered"),
    [
        (("ready", "ready"), True),
        (("loading", "ready"), True),
        (("loading", "starting"), False),
        (("failed", "stopping"), False),
    ],
)
def test_playground_is_offered_while_a_replica_answers(
    states: tuple[str, str], is_offered: bool, admin_client: Client, deployment: Deployment
) -> None:
    for replica, state in zip(deployment.replicas.all(), states, strict=True):
        Replica.objects.filter(pk=replica.pk).update(state=state)
    assert (PLAYGROUND in text_of(admin_client, f"/deployments/{deployment.pk}/")) == is_offered
    live = text_of(admin_client, f"/deployments/{deployment.pk}/live/")
    assert 'id="open-playground" hx-swap-oob="true"' in live, "an open page is corrected, too"
    assert (PLAYGROUND in live) == is_offered


def test_launch_that_was_brought_up_once_does_not_answer_for_ever(
    admin_client: Client, deployment: Deployment
) -> None:
    job = Job.objects.create(kind="serving.launch", label="Plan and deploy", state=State.SUCCEEDED)
    launch = Launch.objects.create(
        job=job, model=deployment.model, workload={}, policy={}, stage="ready", deployment=deployment
    )
    page = f"/launches/{launch.pk}/"
    assert "It answers." in text_of(admin_client, page)
    deployment.replicas.update(state=Replica.States.STOPPED)
    text = text_of(admin_client, page)
    assert "does not answer now" in text
    assert "It answers." not in text
    assert PLAYGROUND not in text


def test_replica_that_is_ended_reads_stopping(admin_client: Client, deployment: Deployment) -> None:
    deployment.replicas.update(state=Replica.States.STOPPING)
    live = text_of(admin_client, f"/deployments/{deployment.pk}/live/")
    assert live.count("Stopping") >= 2
    assert "Stopped" not in live


def test_replica_that_failed_is_ready_since_never(admin_client: Client, deployment: Deployment) -> None:
    deployment.replicas.update(ready_at=timezone.now() - timedelta(minutes=7))
    page = f"/deployments/{deployment.pk}/live/"
    assert text_of(admin_client, page).count("data-age") == 2
    deployment.replicas.update(state=Replica.States.FAILED)
    assert "data-age" not in text_of(admin_client, page)


def test_stop_that_was_lost_after_its_last_process_ended_is_seen_to_be_over(deployment: Deployment) -> None:
    deployment.replicas.update(state=Replica.States.STOPPING, state_reason="Stopping")
    fields: dict[str, Any] = {"wanted": Deployment.Wanted.STOPPED, "state": Deployment.States.STOPPING}
    Deployment.objects.filter(pk=deployment.pk).update(**fields)
    reconcile.reconcile()
    deployment.refresh_from_db()
    assert deployment.state == Deployment.States.STOPPED
    assert {replica.state for replica in deployment.replicas.all()} == {Replica.States.STOPPED}


def test_steps_that_another_one_ended_are_left_out_and_not_called_failed(transactional_db: None) -> None:
    job = Job.objects.create(kind="tests.nothing", label="Deploy", state=State.RUNNING, lease="ours")
    progress = Progress(job)
    progress.open()
    for key in ("done", "guilty", "loading", "later"):
        progress.step(key, key)
    progress.end_step("done")
    progress.start_step("loading")
    progress.fail_step("guilty", "box-2 is gone")
    progress.call_off("called off")
    progress.close(State.FAILED, "box-2 is gone")
    steps = {step.key: (step.state, step.detail) for step in job.steps.all()}
    assert steps["done"] == (JobStep.States.DONE, "")
    assert steps["guilty"] == (JobStep.States.FAILED, "box-2 is gone")
    assert steps["loading"] == (JobStep.States.SKIPPED, "called off")
    assert steps["later"] == (JobStep.States.SKIPPED, "not started")


def test_worker_is_named_as_the_cause_when_its_master_has_ended_with_it(deployment: Deployment) -> None:
    replica = deployment.replicas.all()[0]
    for name, kind, cause in (("box-1", "master", "it lost a worker"), ("box-2", "worker", "killed")):
        device = Device.objects.create(name=name, connection=Device.Connections.LOCAL)
        ManagedProcess.objects.create(
            replica=replica, device=device, kind=kind, marker=name, state="exited", exit_reason=cause
        )
    reconcile.watch(replica, "")
    assert replica.state == Replica.States.FAILED
    assert replica.state_reason == "box-2: RPC worker ended: killed"

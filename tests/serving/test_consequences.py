"""What the question before a roll-out says."""

from __future__ import annotations

import pytest
from django.test import Client

from inventory.models import Device
from jobs.models import Job
from serving.models import Deployment
from serving.runner.operate import TASK
from serving.services import consequences, deployments
from serving.views.deployments import REFUSED_HEADER
from tests.serving.test_pages import deployment

__all__ = ["deployment"]

pytestmark = pytest.mark.django_db


def test_question_names_what_is_stopped_and_whether_nothing_answers(
    admin_client: Client, deployment: Deployment
) -> None:
    for name in ("box-1", "box-2"):
        Device.objects.create(name=name, connection="local", state="online")
    answer = admin_client.get(f"/deployments/effect/?deployment={deployment.pk}")
    said = answer.text
    assert REFUSED_HEADER not in answer.headers
    assert f"{deployment} (this very plan) is stopped first" in said
    assert "nothing answers until this plan is ready" in said
    for replica in deployment.plan["replicas"]:
        replica["stages"][0]["gpu_limit_bytes"] *= 2
    deployment.save()
    assert "no downtime" in consequences.downtime_text(deployment.plan)


def test_a_plan_of_a_device_that_is_gone_is_refused_before_it_is_confirmed(
    admin_client: Client, deployment: Deployment
) -> None:
    Device.objects.create(name="box-1", connection="local", state="online")
    Deployment.objects.update(wanted="stopped", state="stopped")
    answer = admin_client.get(f"/deployments/effect/?deployment={deployment.pk}")
    assert answer.headers[REFUSED_HEADER]
    assert answer.text.startswith(
        "It cannot be deployed. The plan uses box-2, which is not among the devices."
    )
    text = admin_client.get(f"/deployments/{deployment.pk}/").text
    assert "It cannot be deployed. The plan uses box-2" in text and "Deploy this plan again?" not in text
    assert "Recalibrate" not in text, "it never ran"


def test_an_error_stands_once_where_its_roll_out_is_shown(
    admin_client: Client, deployment: Deployment
) -> None:
    error = "box-2: the model file is cut short."
    Deployment.objects.update(wanted="stopped", state="failed", state_reason=error)
    deployment.replicas.filter(index=1).update(state="failed", state_reason=error)
    Job.objects.create(
        kind=TASK, label="Deploy", state="failed", error=error, subject=deployment.subject, params={}
    )
    text = admin_client.get(f"/deployments/{deployment.pk}/").text
    assert text.count(error) == 1


def test_question_warns_of_profiles_from_a_busy_machine(deployment: Deployment) -> None:
    box = Device.objects.create(name="box-1", connection="local", state="online")
    assert "Careful" not in consequences.consequences(deployment.plan, deployment.model, {"box-1": box.pk})
    box.profiles.create(
        model=deployment.model, version=1, tables={}, residual=2.0, measured_at=deployment.created_at
    )
    said = consequences.consequences(deployment.plan, deployment.model, {"box-1": box.pk})
    assert "Careful: the profile of box-1 is noisy" in said
    tables = {"decode": {"micro_batch": [1], "gpu_block_seconds": [1.0], "head_seconds": [0.0]}}
    box.profiles.update(residual=0.0, tables=tables, made_under={"noisy": ["decode of 1: 2 times apart"]})
    said = consequences.consequences(deployment.plan, deployment.model, {"box-1": box.pk})
    assert "Careful: the profile of box-1 is noisy: rounds of 1 cell lie far apart" in said


def test_roll_back_is_offered_to_another_plan_that_ran(deployment: Deployment) -> None:
    deployment.replicas.update(ready_at=deployment.created_at)
    again = Deployment.objects.create(
        model=deployment.model, name="tiny", plan=deployment.plan, cluster={}, context_tokens=1024
    )
    assert deployments.previous_of(again) is None, "the same plan"
    again.plan = {**again.plan, "replicas": again.plan["replicas"][:1]}
    assert deployments.previous_of(again) == deployment
    assert consequences.difference(deployment, again) == (
        "2 replicas instead of 1 replica, the devices box-1, box-2 instead of box-1"
    )
    deployment.state = Deployment.States.FAILED
    deployment.save()
    assert deployments.previous_of(again) is None

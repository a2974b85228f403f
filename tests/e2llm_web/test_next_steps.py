"""The home page has one next step in every state that a lab can be in, for whoever looks."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from accounts.core.roles import Role
from accounts.models import User
from e2llm_web import home
from inventory.models import ModelFile, Profile
from jobs.models import Job, State
from planner.models import PlanRun
from serving.models import Deployment, Launch
from tests.e2llm_web.test_home import CLUSTER, PLAN, deployment, device, model

pytestmark = pytest.mark.django_db


def usable_device() -> Any:
    return device(probed_at=timezone.now(), llama={"server_path": "/opt/llama-server"})


def job(state: str) -> Job:
    return Job.objects.create(kind="x", label="x", state=state)


def planned(state: str = State.SUCCEEDED, **values: Any) -> PlanRun:
    return PlanRun.objects.create(
        job=job(state),
        name="smol on 1 device",
        cluster=CLUSTER,
        plan=PLAN,
        model=model(),
        device_ids={"box-1": device().pk},
        **values,
    )


def step(role: Role = Role.ADMIN) -> tuple[str, list[str]]:
    """Title and links as a person of that role sees them."""
    found = home.page(User(username="x", role=role))["next_step"]
    return found.title, [link.label for link in found.links]


def test_an_empty_lab_is_asked_for_its_first_device() -> None:
    assert step() == ("Add your first device", ["Add your first device"])


def test_devices_without_a_model_ask_for_a_model() -> None:
    device()
    assert step() == ("Add a model", ["Add a model", "Add another device"])
    assert "1 device so far: add the others too" in home.next_step(None).text


def test_a_model_of_which_no_copy_is_left_is_to_be_brought_back() -> None:
    usable_device()
    model()
    ModelFile.objects.all().delete()
    assert step()[0] == "Add a model"
    assert "no copy is left: smol. Put the file back" in home.next_step(None).text


def test_devices_that_cannot_be_used_are_to_be_looked_at() -> None:
    device()
    model()
    assert step() == ("No device can be used yet", ["Open the devices"])


def test_devices_that_were_never_timed_are_measured_first() -> None:
    usable_device()
    model()
    assert step() == ("Measure, plan and deploy", ["Plan and deploy", "Measure only"])


def test_devices_with_a_profile_are_planned_and_deployed() -> None:
    values = {"tables": {}, "residual": 0.01, "measured_at": timezone.now()}
    Profile.objects.create(device=usable_device(), model=model(), **values)
    assert step() == ("Plan and deploy", ["Plan and deploy"])


def test_a_search_is_watched_and_its_plan_deployed() -> None:
    run = planned(State.RUNNING)
    assert step() == ("A plan is searched: smol on 1 device", ["Watch the search"])
    Job.objects.filter(pk=run.job_id).update(state=State.SUCCEEDED)
    assert step() == ("A plan is ready", ["See the plan and deploy it", "Plan and deploy"])


def test_a_plan_older_than_the_last_deployment_is_no_next_step() -> None:
    found = planned().model
    assert found is not None
    values = {"wanted": "stopped", "state": "stopped", "ended_at": timezone.now(), "context_tokens": 2048}
    Deployment.objects.create(model=found, name="smol", plan=PLAN, cluster=CLUSTER, **values)
    assert step()[0] != "A plan is ready"


@pytest.mark.parametrize(
    ("stage", "first"), [("confirm", "See the plan and confirm"), ("preparing", "Watch")]
)
def test_a_launch_is_watched_and_confirmed(stage: str, first: str) -> None:
    Launch.objects.create(job=job(State.RUNNING), model=model(), workload={}, policy={}, stage=stage)
    assert step()[1] == [first]


@pytest.mark.parametrize(
    ("state", "title", "links"),
    [
        ("running", "smol is answering", ["Open playground", "Plan and deploy again"]),
        (
            "degraded",
            "smol is answering in part",
            ["Open the deployment", "Open playground", "Plan and deploy again"],
        ),
        ("starting", "smol is starting", ["Open the deployment"]),
        ("stopping", "smol is stopping", ["Open the deployment"]),
        ("failed", "smol does not answer any more", ["Open the deployment"]),
    ],
)
def test_a_deployment_has_a_next_step_in_every_state(state: str, title: str, links: list[str]) -> None:
    deployment(state)
    assert step() == (title, links)


def test_a_failed_roll_out_is_told_with_its_reason() -> None:
    values = {"wanted": "stopped", "state": "failed", "ended_at": timezone.now(), "context_tokens": 2048}
    failed = Deployment.objects.create(
        model=model(),
        name="smol",
        plan=PLAN,
        cluster=CLUSTER,
        state_reason="Out of memory on box-1.",
        **values,
    )
    assert step() == (f"The last roll-out, {failed}, failed", ["See what failed", "Plan and deploy"])
    assert home.next_step(None).text == "Out of memory on box-1. Nothing is running now."


def test_a_viewer_sees_who_can_take_the_step_and_no_link_that_is_refused(viewer_client: Client) -> None:
    text = viewer_client.get("/").content.decode()
    assert "It takes an admin." in text
    assert "/devices/add/" not in text
    deployment("running")
    assert step(Role.VIEWER) == ("smol is answering", ["Open playground"])

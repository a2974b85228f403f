"""What the forms of plans offer and warn of: models of which a copy is left, links that are as measured."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from accounts.models import User
from inventory.core.quantities import percent_text
from inventory.models import Device, LanguageModel, Link, ModelFile, Profile
from jobs.models import Job
from planner.models import PlanRun
from planner.views.runs import change_path
from tests.planner_app.conftest import finished_run
from tests.planner_app.test_pages import form_data

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("valkey_url")]


@pytest.mark.parametrize("name", ["planner:new", "serving:launch_new"])
def test_a_model_of_which_no_copy_is_left_is_not_offered(
    page: Client, model: LanguageModel, devices: list[Device], name: str
) -> None:
    assert page.get(reverse(name)).context["form"]["model"].initial == model.pk
    ModelFile.objects.all().delete()
    model.name = "<b>Tiny</b>"
    model.save()
    answer = page.get(reverse(name))
    assert "no copy is left: &lt;b&gt;Tiny&lt;/b&gt;. Put the file back" in answer.content.decode()
    assert 'href="/models/"' in answer.content.decode().partition("No model can be used now")[2]
    assert page.post(reverse(name), form_data(model, devices)).status_code == 422
    assert not Job.objects.exists()


def test_a_model_that_is_not_offered_is_named_beside_those_that_are(
    page: Client, model: LanguageModel, devices: list[Device]
) -> None:
    LanguageModel.objects.create(
        name="Lost-3B", architecture="llama", fingerprint="3" * 64, size_bytes=1, shape=model.shape
    )
    text = page.get(reverse("planner:new")).content.decode()
    assert "Not offered, as no copy is left: Lost-3B." in text
    assert ">Lost-3B</option>" not in text and ">Tiny-10B</option>" in text


def test_inputs_of_a_plan_for_a_model_that_is_gone_are_changed_as_they_were_frozen(
    page: Client, model: LanguageModel, devices: list[Device]
) -> None:
    page.post(reverse("planner:new"), form_data(model, devices))
    run = PlanRun.objects.get()
    assert change_path(run).startswith(f"{reverse('planner:new')}?")
    ModelFile.objects.all().delete()
    assert change_path(run) == reverse("planner:change", args=[run.pk])


def test_outdated_links_are_named_before_and_after_planning(
    page: Client, model: LanguageModel, devices: list[Device], small_cluster: dict[str, Any], operator: User
) -> None:
    for source, target in (devices[:2], devices[1::-1], devices[1:]):
        numbers = {"bytes_per_second": 1e8, "latency_seconds": 1e-3, "measured_at": timezone.now()}
        Link.objects.create(source=source, target=target, method="iperf3", **numbers)
    asked = form_data(model, devices)
    assert "Outdated links" not in page.get(reverse("planner:hint"), asked).content.decode()
    for link in Link.objects.filter(source__in=devices[:2], target__in=devices[:2]):
        link.outdate()
    hint = page.get(reverse("planner:hint"), asked).content.decode()
    assert "Outdated links" in hint and "changed: Dev.1 – Dev.2. <a" in hint
    assert f'href="{reverse("inventory:links")}"' in hint

    page.post(reverse("planner:new"), asked)
    note = PlanRun.objects.get().cluster["note"]
    assert "Outdated links, measured before an address changed: Dev.1 – Dev.2." in note
    run = finished_run({**small_cluster, "note": note}, operator)
    Link.objects.all().delete()
    text = page.get(reverse("planner:run", args=[run.pk])).content.decode()
    assert "It was planned with outdated links." in text


def test_every_noisy_profile_is_named_on_the_form_and_on_the_page_of_the_plan(
    page: Client, model: LanguageModel, devices: list[Device], small_cluster: dict[str, Any], operator: User
) -> None:
    far, apart, quiet = Profile.objects.order_by("device__name")
    Profile.objects.filter(pk=far.pk).update(residual=2.22)
    Profile.objects.filter(pk=apart.pk).update(made_under={"noisy": ["decode of 1: 2 times apart"]})
    page.post(reverse("planner:new"), form_data(model, devices))
    note = PlanRun.objects.get().cluster["note"]
    run = finished_run({**small_cluster, "note": note}, operator)
    for path, asked in (
        (reverse("planner:hint"), form_data(model, devices)),
        (reverse("planner:run", args=[run.pk]), {}),
    ):
        text = page.get(path, asked).content.decode()
        assert f"The profile of {far.device} is noisy: {percent_text(2.22)} off the fit" in text
        assert (
            f"The profile of {apart.device} is noisy: rounds of 1 cell lie far apart, {percent_text(0.02)} off the fit"
            in text
        )
        assert f"The profile of {quiet.device} is noisy" not in text
        said = "It was planned with noisy profiles" if asked == {} else "Doubtful profiles"
        assert f'href="{reverse("inventory:profiles")}"' in text.partition(said)[2].partition("</a>")[0]


def test_devices_that_are_one_machine_are_said_so_beside_what_they_hold(
    page: Client, model: LanguageModel, devices: list[Device]
) -> None:
    shared = {"boot_id": "same", "gpus": []}
    Device.objects.update(gpu_usable_bytes=21 * 10**9, ram_usable_bytes=0, hardware=shared)
    text = page.get(reverse("planner:hint"), form_data(model, devices)).content.decode()
    sum_of_them = text.partition("These 3 devices hold")[2]
    assert sum_of_them.partition("</td>")[0].endswith("21 GB</data>")
    assert "are one machine: its memory is counted once and split" in sum_of_them.partition("<caption")[0]


def test_a_plan_from_a_file_says_why_it_is_not_deployed_and_what_is(
    page: Client, small_cluster: dict[str, Any], operator: User, devices: list[Device], model: LanguageModel
) -> None:
    run = finished_run(small_cluster, operator)
    text = page.get(reverse("planner:run", args=[run.pk])).content.decode()
    assert "made from a cluster file and its numbers are those of the file, not of the devices here" in text
    assert "make a plan from the devices" in text
    assert "Deploy this plan?" not in text
    known = {device.name: device.pk for device in devices}
    assert PlanRun(device_ids=known, model=model).undeployable_reason == ""
    assert "model is not registered" in PlanRun(device_ids=known).undeployable_reason

"""The plan pages through Django's client: right without any script."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse

from accounts.models import AuditEntry, User
from inventory.models import Device, LanguageModel, Profile
from jobs.models import State
from planner import services
from planner.core.errors import NoFeasiblePlan
from planner.core.problem import Problem
from planner.models import PlanRun
from tests.planner_app.conftest import finished_run

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("valkey_url")]


def form_data(model: LanguageModel, devices: list[Device], **changes: Any) -> dict[str, Any]:
    return {
        "model": model.pk,
        "devices": [device.pk for device in devices],
        "input_tokens": 576,
        "output_tokens": 588,
        "arrival_seconds": 1,
        "requests": 100,
        "context_tokens": 8192,
        "min_tokens_per_second": 5,
        "max_slots": 16,
        "runtime": "serial",
        "allow_mixed": "on",
        "method": "ga",
        "seed": 3,
    } | changes


def test_an_empty_list_offers_the_first_plan_and_the_example(page: Client) -> None:
    text = page.get(reverse("planner:index")).content.decode()
    assert "No plan yet" in text
    assert "not measured" in text


def test_a_viewer_may_look_but_not_plan(viewer_client: Client) -> None:
    assert viewer_client.get(reverse("planner:index")).status_code == 200
    assert viewer_client.get(reverse("planner:new")).status_code == 403


def test_the_form_starts_a_run_with_frozen_inputs(
    page: Client, model: LanguageModel, devices: list[Device]
) -> None:
    response = page.post(reverse("planner:new"), form_data(model, devices))
    run = PlanRun.objects.get()
    assert response.headers["Location"] == reverse("planner:run", args=[run.pk])
    assert run.cluster["workload"]["input_tokens"] == 576
    assert run.device_ids == {device.name: device.pk for device in devices}
    assert run.job.state == State.PENDING
    assert AuditEntry.objects.filter(action="plan.started").exists()
    devices[0].delete()
    assert PlanRun.objects.get().cluster["devices"][0]["name"] == "Dev.1"


def test_the_form_saves_a_cluster_file_and_starts_nothing(
    page: Client, model: LanguageModel, devices: list[Device]
) -> None:
    response = page.post(reverse("planner:new"), form_data(model, devices) | {"download": "yes"})
    assert response.headers["Content-Disposition"] == 'attachment; filename="lab.cluster.json"'
    assert len(Problem.from_dict(json.loads(response.content)).devices) == 3
    assert not PlanRun.objects.exists()


def test_a_missing_profile_is_named_with_its_remedy(
    page: Client, model: LanguageModel, devices: list[Device]
) -> None:
    Profile.objects.filter(device=devices[1]).delete()
    response = page.post(reverse("planner:new"), form_data(model, devices))
    assert response.status_code == 422
    assert "No profile of Tiny-10B on Dev.2: run a profile." in response.content.decode()
    assert not PlanRun.objects.exists()


def test_a_wrong_field_keeps_what_was_typed(
    page: Client, model: LanguageModel, devices: list[Device]
) -> None:
    response = page.post(reverse("planner:new"), form_data(model, devices, context_tokens=1000, seed=77))
    text = response.content.decode()
    assert response.status_code == 422
    assert "enter 1164 or more" in text
    assert 'value="77"' in text


@pytest.mark.parametrize(
    "query",
    ["model=abc", "devices=x&devices=-1", "arrival_seconds=soon", "context_tokens=99999999999999999999"],
)
def test_a_strange_address_opens_the_form(
    page: Client, model: LanguageModel, devices: list[Device], query: str
) -> None:
    assert page.get(f"{reverse('planner:new')}?{query}").status_code == 200
    assert page.get(f"{reverse('planner:hint')}?{query}").status_code == 200
    assert page.get(f"{reverse('planner:workload')}?{query}").status_code == 200


@pytest.mark.parametrize("text", ["[]", "3", "{", '{"format": NaN}', "[" * 100_000, "{}"])
def test_a_file_that_is_no_cluster_is_refused(page: Client, text: str) -> None:
    upload = SimpleUploadedFile("lab.json", text.encode())
    response = page.post(reverse("planner:file"), {"cluster": upload, "method": "ga", "seed": 1})
    assert response.status_code == 422
    assert not PlanRun.objects.exists()


def test_the_hint_adds_up_the_memory(page: Client, model: LanguageModel, devices: list[Device]) -> None:
    text = page.get(reverse("planner:hint"), form_data(model, devices)).content.decode()
    assert "24 × 400 MB" in text
    assert "By memory, yes" in text
    Device.objects.filter(pk=devices[2].pk).update(gpu_usable_bytes=2 * 10**9, ram_usable_bytes=0)
    one = page.get(reverse("planner:hint"), form_data(model, devices[2:])).content.decode()
    assert "short.</strong>" in one


def test_a_running_search_shows_the_best_so_far(
    page: Client, operator: User, small_cluster: dict[str, Any]
) -> None:
    run = services.start_run(small_cluster, "ga", 1, operator)
    text = page.get(reverse("planner:run", args=[run.pk])).content.decode()
    assert f'data-socket="/ws/plans/{run.pk}/"' in text
    assert "No plan yet" in text


def test_no_plan_shows_limit_number_and_remedy(
    page: Client, operator: User, small_cluster: dict[str, Any]
) -> None:
    small_cluster["model"]["block_bytes"] = 60e9
    with pytest.raises(NoFeasiblePlan):
        finished_run(small_cluster, operator)
    run = PlanRun.objects.get()
    text = page.get(reverse("planner:run", args=[run.pk])).content.decode()
    assert "No plan can hold these limits" in text
    assert run.refusal is not None
    assert "Smallest change that helps" in text
    assert "TB are missing for all" in text


def test_files_go_out_and_come_back_in(page: Client, operator: User, small_cluster: dict[str, Any]) -> None:
    run = finished_run(small_cluster, operator)
    exported = page.get(reverse("planner:cluster_file", args=[run.pk]))
    assert json.loads(exported.content)["devices"] == small_cluster["devices"]
    upload = SimpleUploadedFile("lab.json", exported.content)
    page.post(reverse("planner:file"), {"cluster": upload, "method": "ga", "seed": 1})
    again = PlanRun.objects.first()
    assert again is not None and again.pk != run.pk
    assert again.cluster["model"] == run.cluster["model"]


def test_a_plan_comes_back_in_with_its_cluster(
    page: Client, operator: User, small_cluster: dict[str, Any]
) -> None:
    run = finished_run(small_cluster, operator)
    assert run.plan is not None
    run.plan["proof"] |= {"optimal": True, "gap": 0.0, "method": "magic"}
    run.save()
    files = {
        "cluster": SimpleUploadedFile("lab.json", page.get(f"/plans/{run.pk}/cluster.json").content),
        "plan": SimpleUploadedFile("plan.json", page.get(f"/plans/{run.pk}/plan.json").content),
    }
    page.post(reverse("planner:file"), files | {"method": "ga", "seed": 1})
    imported = PlanRun.objects.first()
    assert imported is not None and imported.pk != run.pk
    assert imported.plan == run.plan
    ours = page.get(reverse("planner:run", args=[run.pk])).content.decode()
    assert "Proven best" in ours
    assert "the file claims" not in ours
    PlanRun.objects.exclude(pk=imported.pk).delete()
    text = page.get(reverse("planner:run", args=[imported.pk])).content.decode()
    assert "The file claims: proven best" in text
    for shown in (text, page.get(reverse("planner:index")).content.decode()):
        assert "Imported" in shown
        assert "Proven best" not in shown
        assert "with proof" not in shown


def test_a_wrong_file_lists_every_problem(page: Client, small_cluster: dict[str, Any]) -> None:
    small_cluster["model"]["block_bytes"] = -1
    del small_cluster["workload"]["requests"]
    upload = SimpleUploadedFile("lab.json", json.dumps(small_cluster).encode())
    text = page.post(reverse("planner:file"), {"cluster": upload, "method": "ga", "seed": 1}).content.decode()
    assert "model.block_bytes" in text
    assert "workload.requests" in text


def test_a_rejected_form_says_at_the_top_what_is_wrong_and_leads_there(
    page: Client, model: LanguageModel, devices: list[Device]
) -> None:
    data = form_data(model, [], context_tokens=64, requests=0)
    answer = page.post(reverse("planner:new"), data)
    text = answer.content.decode()
    summary = text[text.index('id="error-summary"') : text.index("Model and devices")]
    assert answer.status_code == 422
    assert 'role="alert" tabindex="-1" autofocus id="error-summary"' in text
    assert "3 entries are not right" in summary
    for name in ("context_tokens", "requests", "devices_0"):
        assert f'<a href="#id_{name}">' in summary
        assert f'id="id_{name}"' in text


def test_the_memory_sum_names_only_what_it_still_needs(
    page: Client, model: LanguageModel, devices: list[Device]
) -> None:
    address = reverse("planner:hint")
    text = page.get(address, form_data(model, devices, context_tokens=64)).content.decode()
    assert "once this is set: context of a slot." in text
    text = page.get(address, form_data(model, [])).content.decode()
    assert "once this is set: devices." in text


def test_a_file_with_one_fault_is_to_be_mended_in_one_place(
    page: Client, small_cluster: dict[str, Any]
) -> None:
    small_cluster["model"]["block_bytes"] = -1
    for told in ("Mend this place and", "Mend these 2 places and"):
        upload = SimpleUploadedFile("lab.json", json.dumps(small_cluster).encode())
        answer = page.post(reverse("planner:file"), {"cluster": upload, "method": "ga", "seed": 1})
        assert answer.status_code == 422
        assert told in answer.content.decode()
        small_cluster["workload"]["requests"] = 0


def test_a_plan_file_with_too_many_slots_is_refused_with_its_path(
    page: Client, operator: User, small_cluster: dict[str, Any]
) -> None:
    run = finished_run(small_cluster, operator)
    plan = json.loads(json.dumps(run.plan))
    plan["replicas"][0]["slots"] = 10**9
    files = {
        "cluster": SimpleUploadedFile("lab.json", json.dumps(run.cluster).encode()),
        "plan": SimpleUploadedFile("plan.json", json.dumps(plan).encode()),
    }
    answer = page.post(reverse("planner:file"), files | {"method": "ga", "seed": 1})
    assert answer.status_code == 422
    assert "replicas[0].slots: 1000000000 is more than" in answer.content.decode()
    assert PlanRun.objects.count() == 1


def test_a_search_without_a_generation_yet_shows_dashes(
    page: Client, operator: User, small_cluster: dict[str, Any]
) -> None:
    run = services.start_run(small_cluster, "ga", 1, operator)
    text = page.get(reverse("planner:run", args=[run.pk])).content.decode()
    assert "<dd data-run-generation>–</dd>" in text
    assert "<dt>Different replicas evaluated</dt><dd data-run-evaluations>–</dd>" in text


def test_the_example_is_called_estimated(page: Client) -> None:
    page.post(reverse("planner:example"), {"example": "gpt-oss-20b"})
    run = PlanRun.objects.get()
    assert len(run.cluster["devices"]) == 8
    assert "Not measurements" in run.cluster["note"]


def test_a_worker_only_device_is_no_master(model: LanguageModel, devices: list[Device]) -> None:
    devices[0].llama = {"server_path": "", "rpc_server_path": "/opt/rpc"}
    devices[0].save()
    policy = {
        "min_tokens_per_second": 5.0,
        "max_slots": 4,
        "runtime": "serial",
        "topology": "star",
        "allow_mixed": True,
        "allow_idle": True,
        "seed": 0,
    }
    workload = {
        "input_tokens": 10,
        "output_tokens": 10,
        "arrival_seconds": 1.0,
        "requests": 5,
        "context_tokens": 512,
    }
    run = services.plan_inventory(model, devices, workload, policy, "ga", None)
    assert run.cluster["devices"][0]["can_be_master"] is False

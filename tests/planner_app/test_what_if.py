"""What-if on a finished plan: other numbers, other devices, another model, and a new plan made of them."""

from __future__ import annotations

from threading import Thread
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from accounts.models import User
from inventory.models import Device, LanguageModel, Link, Profile
from planner import runner, services
from planner.core.problem import Problem
from planner.forms import PolicyForm
from planner.models import PlanRun
from planner.services import Changes
from planner.services.what_if import newest_questions
from tests.conftest import wait_until
from tests.planner_app.conftest import cluster_of, finished_run, many_devices, profiled_device, shape

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("valkey_url")]
NUMBERS = {"arrival_seconds": 1, "input_tokens": 576, "output_tokens": 588, "min_tokens_per_second": 5}
WORKLOAD = {
    "input_tokens": 576,
    "output_tokens": 588,
    "arrival_seconds": 1.0,
    "requests": 60,
    "context_tokens": 8192,
}
POLICY = {
    "min_tokens_per_second": 5.0,
    "max_slots": 8,
    "runtime": "serial",
    "topology": "star",
    "allow_mixed": True,
    "allow_idle": True,
    "seed": 0,
}


@pytest.fixture
def planned(model: LanguageModel, devices: list[Device], operator: User) -> PlanRun:
    """A finished plan for three registered devices."""
    run = services.plan_inventory(model, devices, WORKLOAD, POLICY, "ga", operator)
    runner.execute(run.job_id)
    return PlanRun.objects.get(pk=run.pk)


@pytest.fixture
def smaller(db: None) -> LanguageModel:
    """A model of which nothing was ever timed: half the weights in half the bytes."""
    whole = shape()
    blocks = tuple(block.__class__(**{**vars(block), "size_bytes": 200_000_000}) for block in whole.blocks)
    half = {"blocks": blocks, "weight_bytes": 5 * 10**9, "parameters": 5 * 10**9, "output_bytes": 50_000_000}
    return LanguageModel.objects.create(
        name="Tiny-5B",
        architecture="llama",
        fingerprint="5" * 64,
        size_bytes=5 * 10**9,
        shape=shape(**half).to_dict(),
    )


def asked(page: Client, run: PlanRun, **changes: Any) -> str:
    return page.get(reverse("planner:what_if", args=[run.pk]), NUMBERS | changes).content.decode()


def test_what_if_shows_the_plan_for_other_inputs(
    page: Client, operator: User, small_cluster: dict[str, Any]
) -> None:
    run = finished_run(small_cluster, operator)
    changes = NUMBERS | {"arrival_seconds": 9}
    text = page.get(reverse("planner:what_if", args=[run.pk]), changes).content.decode()
    assert "<strong>9 s</strong>" in text
    floor = page.get(reverse("planner:what_if", args=[run.pk]), changes | {"min_tokens_per_second": 9999})
    assert "No plan could hold these limits" in floor.content.decode()


def test_what_if_can_be_made_a_plan_of_its_own(
    page: Client, operator: User, small_cluster: dict[str, Any]
) -> None:
    run = finished_run(small_cluster, operator)
    changes = NUMBERS | {"arrival_seconds": 9}
    page.post(reverse("planner:again", args=[run.pk]), changes | {"without": ["Dev.2"]})
    made = PlanRun.objects.first()
    assert made is not None
    assert [device["name"] for device in made.cluster["devices"]] == ["Dev.1", "Dev.5"]
    assert made.cluster["workload"]["arrival_seconds"] == 9


def test_what_if_that_cannot_be_planned_is_told_on_the_page(
    page: Client, operator: User, small_cluster: dict[str, Any]
) -> None:
    run = finished_run(small_cluster, operator)
    address = reverse("planner:again", args=[run.pk])
    changes = NUMBERS | {"input_tokens": 9000}
    answer = page.post(address, changes)
    assert answer.status_code == 422
    assert "9,588 tokens, and a slot holds 8,192" in answer.content.decode()
    assert 'value="9000"' in answer.content.decode()
    answer = page.post(address, changes | {"output_tokens": 0})
    assert answer.status_code == 422
    assert "Output tokens: Use at least 1." in answer.content.decode()
    assert PlanRun.objects.count() == 1


def test_another_model_is_planned_with_its_own_latencies_where_they_were_measured(
    planned: PlanRun, smaller: LanguageModel, devices: list[Device]
) -> None:
    qwen = {entry["name"]: entry for entry in cluster_of("qwen3-30b-a3b-q4_k_m")["devices"]}["Dev.1"]
    tables = {"decode": qwen["decode"], "prefill": qwen["prefill"]}
    values = {"device": devices[0], "model": smaller, "residual": 0.01, "measured_at": timezone.now()}
    Profile.objects.create(tables=tables, **values)
    inputs = services.changed_inputs(planned, Changes(model_id=smaller.pk))
    assert Problem.from_dict(inputs.cluster).model.name == "Tiny-5B"
    measured, estimated, _ = inputs.cluster["devices"]
    assert measured["decode"] == qwen["decode"]
    before = planned.cluster["devices"][1]["decode"]["gpu_block_seconds"]
    assert estimated["decode"]["gpu_block_seconds"] == pytest.approx(
        [0.5 * seconds for seconds in before], rel=1e-4
    )
    assert inputs.remarks[0].startswith("Estimated, not measured, on Dev.2, Dev.5: a block takes 0.5 times")
    assert inputs.cluster["note"].startswith(inputs.remarks[0])


def test_the_page_says_which_latencies_of_another_model_are_estimated(
    page: Client, planned: PlanRun, smaller: LanguageModel
) -> None:
    offered = page.get(reverse("planner:run", args=[planned.pk])).content.decode()
    assert "Tiny-5B (estimated)" in offered
    text = asked(page, planned, model=smaller.pk)
    assert "Not all of this is measured." in text
    assert "<strong>Tiny-5B</strong>" in text


def test_a_new_plan_of_a_what_if_takes_over_model_devices_and_numbers(
    page: Client, planned: PlanRun, smaller: LanguageModel, devices: list[Device]
) -> None:
    fourth = profiled_device({**cluster_of()["devices"][2]}, LanguageModel.objects.get(name="Tiny-10B"))
    changes = {"model": smaller.pk, "added": [fourth.pk], "without": ["Dev.2"], "output_tokens": 300}
    page.post(reverse("planner:again", args=[planned.pk]), NUMBERS | changes)
    made = PlanRun.objects.first()
    assert made is not None and made.pk != planned.pk
    assert made.model == smaller
    assert made.device_ids == {"Dev.1": devices[0].pk, "Dev.5": devices[2].pk, "Dev.3": fourth.pk}
    assert [device["name"] for device in made.cluster["devices"]] == ["Dev.1", "Dev.5", "Dev.3"]
    assert made.cluster["workload"]["output_tokens"] == 300
    assert "Estimated, not measured, on Dev.1, Dev.2, Dev.5" in made.cluster["note"]
    runner.execute(made.job_id)
    text = page.get(reverse("planner:run", args=[made.pk])).content.decode()
    assert "Not all of its latencies are measured." in text


def test_a_device_of_the_lab_is_added_with_its_measured_links(page: Client, planned: PlanRun) -> None:
    model = LanguageModel.objects.get()
    fourth = profiled_device({**cluster_of()["devices"][2]}, model)
    first = Device.objects.get(name="Dev.1")
    speeds = {"bytes_per_second": 5e7, "latency_seconds": 0.002, "measured_at": timezone.now()}
    Link.objects.create(source=first, target=fourth, method="test", **speeds)
    assert "Dev.3 (measured)" in page.get(reverse("planner:run", args=[planned.pk])).content.decode()
    inputs = services.changed_inputs(planned, Changes(added=[fourth.pk]))
    pair = {"a": "Dev.1", "b": "Dev.3", "bytes_per_second": 5e7, "latency_seconds": 0.001}
    assert inputs.cluster["links"]["pairs"] == [pair]
    assert inputs.remarks == ["2 links of Dev.3 not measured: taken to be like most others."]
    assert inputs.cluster["devices"][3]["decode"] == cluster_of()["devices"][2]["decode"]
    assert "Dev.3" in asked(page, planned, added=[fourth.pk])


def test_a_device_of_the_same_machine_shares_its_memory(planned: PlanRun) -> None:
    first = Device.objects.get(name="Dev.1")
    entry = {**cluster_of()["devices"][0], "name": "Dev.1b"}
    second = profiled_device(entry, LanguageModel.objects.get())
    Device.objects.filter(pk=second.pk).update(hardware=first.hardware)
    inputs = services.changed_inputs(planned, Changes(added=[second.pk]))
    had = planned.cluster["devices"][0]["gpu_usable_bytes"]
    shares = [inputs.cluster["devices"][index]["gpu_usable_bytes"] for index in (0, 3)]
    assert shares == [pytest.approx(had / 2, rel=0.1)] * 2
    assert any("are one machine: its memory is counted once" in remark for remark in inputs.remarks)


def test_a_device_that_cannot_be_added_is_named_with_the_reason(page: Client, planned: PlanRun) -> None:
    Device.objects.create(name="<b>new</b>", host="192.0.2.9")
    text = page.get(reverse("planner:run", args=[planned.pk])).content.decode()
    assert "&lt;b&gt;new&lt;/b&gt; was never probed" in text


def test_one_more_of_a_kind_has_the_links_of_its_original_and_cannot_be_deployed(
    page: Client, planned: PlanRun
) -> None:
    planned.cluster["links"]["pairs"] = [
        {"a": "Dev.1", "b": "Dev.2", "bytes_per_second": 2e7, "latency_seconds": 0.0}
    ]
    planned.save()
    text = asked(page, planned, twins=["Dev.1"])
    assert "Dev.1 no. 2 does not exist: it counts as a copy of Dev.1" in text
    page.post(reverse("planner:again", args=[planned.pk]), NUMBERS | {"twins": ["Dev.1"]})
    made = PlanRun.objects.select_related("job").first()
    assert made is not None
    assert made.cluster["links"]["pairs"][1]["a"] == "Dev.1 no. 2"
    assert made.device_ids == {}
    runner.execute(made.job_id)
    text = page.get(reverse("planner:run", args=[made.pk])).content.decode()
    assert "counts with a device that does not exist, so it can be studied, not deployed" in text
    assert "Deploy this plan?" not in text


def test_what_if_of_a_plan_from_a_file_offers_one_more_of_each_kind(
    page: Client, operator: User, small_cluster: dict[str, Any]
) -> None:
    run = finished_run(small_cluster, operator)
    assert services.alternatives(run).models == []
    without_others = asked(page, run, without=["Dev.1", "Dev.2", "Dev.5"])
    assert "Leave at least one device in." in without_others
    assert "Leave at least one device in." not in asked(page, run, without=["Dev.2", "Dev.5"])


def test_devices_that_are_not_on_offer_are_refused(page: Client, planned: PlanRun) -> None:
    for changes in ({"added": ["999"]}, {"twins": ["Dev.9"]}, {"model": "77"}, {"without": ["x"]}):
        assert "Not worked out: " in asked(page, planned, **changes)


def test_a_question_that_was_overtaken_is_not_worked_out_to_its_end() -> None:
    large, small = many_devices(60), cluster_of()
    ended: list[Exception] = []

    def ask() -> None:
        try:
            services.what_if(large, "a page")
        except services.Superseded as error:
            ended.append(error)

    first = Thread(target=ask)
    first.start()
    wait_until(lambda: "a page" in newest_questions, "the first question is worked on")
    assert services.what_if(small, "another page").plan is not None
    assert ended == []
    assert services.what_if(small, "a page").plan is not None
    first.join()
    assert len(ended) == 1
    assert newest_questions == {}


@pytest.mark.parametrize("is_refused", [False, True])
def test_the_inputs_of_a_plan_without_registered_devices_are_changed_in_its_own_form(
    page: Client, operator: User, small_cluster: dict[str, Any], is_refused: bool
) -> None:
    run = finished_run(small_cluster, operator)
    if is_refused:
        PlanRun.objects.filter(pk=run.pk).update(plan=None)
    address = reverse("planner:change", args=[run.pk])
    assert f'href="{address}"' in page.get(reverse("planner:run", args=[run.pk])).content.decode()
    fields = page.get(address).context["form"].initial
    typed = {name: fields[name] for name in PolicyForm.base_fields}
    answer = page.post(address, typed | {"context_tokens": 16384, "without": ["Dev.2"]})
    made = PlanRun.objects.latest("pk")
    assert answer.headers["Location"] == reverse("planner:run", args=[made.pk])
    assert made.cluster["workload"] == run.cluster["workload"] | {"context_tokens": 16384}
    assert made.cluster["devices"] == [run.cluster["devices"][0], run.cluster["devices"][2]]
    assert page.post(address, typed | {"without": ["Dev.1", "Dev.2", "Dev.5"]}).status_code == 422


def test_the_inputs_of_a_plan_for_the_lab_are_changed_in_the_form_of_new_plans(
    page: Client, planned: PlanRun, devices: list[Device]
) -> None:
    address = reverse("planner:run", args=[planned.pk])
    assert f'href="{reverse("planner:new")}?' in page.get(address).content.decode()
    devices[0].delete()
    assert f'href="{reverse("planner:change", args=[planned.pk])}"' in page.get(address).content.decode()


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ({"arrival_seconds": "0"}, "Use at least 0.001 s."),
        ({"arrival_seconds": "1e400"}, "Enter a number from 0.001 s to 86,400 s."),
        ({"arrival_seconds": ""}, "Enter a number from 0.001 s to 86,400 s."),
        ({"output_tokens": "1.5"}, "Enter a whole number from 1 to 1,000,000."),
        ({"min_tokens_per_second": "99999"}, "Use at most 10,000 tokens/s."),
    ],
)
def test_a_number_of_what_if_that_cannot_be_is_refused_beside_its_field(
    page: Client, operator: User, small_cluster: dict[str, Any], typed: dict[str, Any], said: str
) -> None:
    run = services.start_run(small_cluster, "ga", 1, operator)
    PlanRun.objects.filter(pk=run.pk).update(plan={})
    (name,) = typed
    _, beside = asked(page, run, **typed).split(f'id="id_{name}_error"')
    assert said in beside.split("</div>")[0]

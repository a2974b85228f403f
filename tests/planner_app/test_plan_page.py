"""The page of a plan that was found, and two plans beside each other."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from accounts.models import User
from jobs.models import Job, State
from tests.planner_app.conftest import finished_run

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("valkey_url")]


def test_the_page_of_a_plan_says_what_binds(
    page: Client, operator: User, small_cluster: dict[str, Any]
) -> None:
    run = finished_run(small_cluster, operator)
    text = page.get(reverse("planner:run", args=[run.pk])).content.decode()
    assert run.plan is not None
    assert "What limits this plan" in text
    assert "Memory of each device" in text
    assert "is tightest" in text
    for stage in run.plan["replicas"][0]["stages"]:
        assert stage["device"] in text


def test_the_page_of_a_plan_explains_its_words(
    page: Client, operator: User, small_cluster: dict[str, Any]
) -> None:
    small_cluster["policy"] |= {"handover": False, "allow_mixed": False}
    run = finished_run(small_cluster, operator)
    text = page.get(reverse("planner:run", args=[run.pk])).content.decode()
    assert "What these words mean" in text
    assert "Only reads prompts." in text
    for term in ("Each request gets at least", "All requests get", "Generation", "Seed"):
        assert f"<dt>{term}</dt>" in text
    assert "Taken as free by this plan" in text
    assert "taken as free, as in the paper" in text
    assert "Mixed replica<" not in text


def test_a_plan_of_many_replicas_folds_its_diagrams_behind_a_table(
    page: Client, operator: User, small_cluster: dict[str, Any]
) -> None:
    run = finished_run(small_cluster, operator)
    assert run.plan is not None
    first, address = len(run.plan["replicas"]), reverse("planner:run", args=[run.pk])
    assert "Diagrams of the" not in page.get(address).content.decode()
    for copy in range(12):
        run.cluster["devices"] += [
            {**one, "name": f"{one['name']} {copy}"} for one in small_cluster["devices"]
        ]
        run.plan["replicas"] += [
            {
                **one,
                "stages": [{**stage, "device": f"{stage['device']} {copy}"} for stage in one["stages"]],
            }
            for one in run.plan["replicas"][:first]
        ]
    run.save()
    text = page.get(address).content.decode()
    count = len(run.plan["replicas"])
    assert f'<summary class="panel-head">Diagrams of the {count} replicas' in text
    assert (
        text.index("What")
        < text.index('class="bottleneck-note')
        < text.index('<summary class="panel-head">Diagrams')
    )
    assert text.count('class="replica role-') == count


def test_a_stopped_search_shows_simulated_waits_as_its_page_list_and_comparison_do(
    page: Client, operator: User, small_cluster: dict[str, Any]
) -> None:
    run = finished_run(small_cluster, operator)
    assert run.plan is not None
    other = finished_run(small_cluster, operator)
    run.plan["proof"] |= {"optimal": True, "gap": 0.0, "value": 4321.0}
    run.plan["predicted"] |= {"max_wait_seconds": 4321.0}
    run.save()
    Job.objects.filter(pk=run.job_id).update(state=State.CANCELLED)
    text = page.get(reverse("planner:run", args=[run.pk])).content.decode()
    assert "The search did not finish: cancelled." in text
    assert text.count("1 h 12 min") == text.count("simulated; by the formula 1 h 12 min") + 1  # in its proof
    listed = page.get(reverse("planner:index")).content.decode()
    both = page.get(reverse("planner:compare") + f"?run={run.pk}&run={other.pk}").content.decode()
    assert "1 h 12 min" not in listed
    assert "Their longest waits are the same." in both
    for shown in (text, listed):
        assert "Stopped early: best so far" in shown
        assert "Proven best" not in shown


def test_what_each_device_brings_is_worked_out(
    page: Client, operator: User, small_cluster: dict[str, Any]
) -> None:
    run = finished_run(small_cluster, operator)
    text = page.get(reverse("planner:worth", args=[run.pk])).content.decode()
    assert "with a second one" in text
    assert "shorter" in text
    assert text.count('<th scope="row"') == 3


@pytest.mark.parametrize(
    ("numbers", "reason"),
    [
        ({"gpu_usable_bytes": 1e6, "ram_usable_bytes": 0}, "not one block with one slot fits its memory"),
        ({"max_blocks": 0}, "its max_blocks allows no block"),
    ],
)
def test_an_idle_device_has_a_reason(
    page: Client, operator: User, small_cluster: dict[str, Any], numbers: dict[str, float], reason: str
) -> None:
    small_cluster["devices"][2] |= numbers
    run = finished_run(small_cluster, operator)
    text = page.get(reverse("planner:run", args=[run.pk])).content.decode()
    assert reason in text


def test_two_plans_stand_side_by_side(page: Client, operator: User, small_cluster: dict[str, Any]) -> None:
    first = finished_run(small_cluster, operator)
    small_cluster["workload"]["arrival_seconds"] = 3.0
    second = finished_run(small_cluster, operator)
    address = reverse("planner:compare") + f"?run={first.pk}&run={second.pk}"
    text = page.get(address).content.decode()
    assert "<strong>3 s</strong>" in text
    assert "Their inputs differ: A request every." in text
    for label in ("What limits it", "Proof", "Busy: prompts and answers", "Replica 1"):
        assert f'role="rowheader">{label}</th>' in text
    assert text.count("once its prompt is read") == 2
    third = finished_run(small_cluster, operator)
    text = page.get(reverse("planner:compare") + f"?run={second.pk}&run={third.pk}").content.decode()
    assert "inputs differ" not in text

"""Runs that ended are given titles, and removed while nothing that was made of them needs them."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from accounts.models import AuditEntry, User
from inventory.models import LanguageModel
from jobs.models import Job, State
from planner import services
from planner.models import PlanRun
from serving.models import Deployment, Launch
from tests.planner_app.conftest import finished_run

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("valkey_url")]


@pytest.fixture
def run(small_cluster: dict[str, Any], operator: User) -> PlanRun:
    return finished_run(small_cluster, operator)


def test_a_title_stands_before_the_name_in_the_list_and_beside_another_run(
    page: Client, run: PlanRun, small_cluster: dict[str, Any], operator: User
) -> None:
    other = finished_run(small_cluster, operator)
    page.post(reverse("planner:title", args=[run.pk]), {"title": " Evenings <b> "})
    shown = f"Evenings &lt;b&gt;: {run.name}"
    for path in (
        reverse("planner:index"),
        reverse("planner:run", args=[run.pk]),
        f"{reverse('planner:compare')}?run={run.pk}&run={other.pk}",
    ):
        text = page.get(path).content.decode()
        assert shown in text and "Evenings <b>" not in text, path
    entry = AuditEntry.objects.get(action="plan.titled")
    assert entry.detail["title"] == "Evenings <b>"
    page.post(reverse("planner:title", args=[run.pk]), {"title": "x" * 81})
    run.refresh_from_db()
    assert run.title == "Evenings <b>"


def test_an_ended_run_is_removed_with_its_plan_and_noted(page: Client, run: PlanRun) -> None:
    assert "Remove this run" in page.get(reverse("planner:run", args=[run.pk])).content.decode()
    answer = page.post(reverse("planner:remove", args=[run.pk]), follow=True)
    assert f"{run} #{run.pk} is removed." in answer.content.decode()
    assert not PlanRun.objects.exists()
    assert Job.objects.filter(pk=run.job_id).exists()
    assert AuditEntry.objects.get(action="plan.removed").detail == {"run": run.pk}


def test_a_run_that_something_needs_stays_and_says_for_what(
    page: Client, run: PlanRun, model: LanguageModel
) -> None:
    path = reverse("planner:remove", args=[run.pk])
    launch = Launch.objects.create(
        job=run.job, model=model, workload={}, policy={}, stage=Launch.Stages.CONFIRM, plan_run=run
    )
    assert "A launch waits for the confirmation" in page.post(path, follow=True).content.decode()
    launch.delete()
    deployment = Deployment.objects.create(
        plan_run=run, model=model, name="Tiny", plan={}, cluster={}, context_tokens=1
    )
    assert f"The deployment {deployment} was made of it" in page.post(path, follow=True).content.decode()
    deployment.delete()
    Job.objects.filter(pk=run.job_id).update(state=State.RUNNING)
    assert "Its search goes on" in page.post(path, follow=True).content.decode()
    assert PlanRun.objects.filter(pk=run.pk).exists()
    Job.objects.filter(pk=run.job_id).update(state=State.CANCELLED)
    services.remove_run(PlanRun.objects.get(pk=run.pk))


def test_viewers_neither_name_nor_remove_runs(viewer_client: Client, run: PlanRun) -> None:
    text = viewer_client.get(reverse("planner:run", args=[run.pk])).content.decode()
    assert "Remove this run" not in text
    for name in ("planner:title", "planner:remove"):
        assert viewer_client.post(reverse(name, args=[run.pk]), {"title": "x"}).status_code == 403
    assert PlanRun.objects.get().title == ""

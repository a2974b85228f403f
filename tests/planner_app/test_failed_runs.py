"""A search that failed leaves pages that open, whatever it left behind."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from accounts.models import User
from jobs.models import Job, State
from tests.planner_app.conftest import finished_run

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("valkey_url")]


def test_pages_of_a_failed_run_open_whatever_plan_it_left(
    page: Client, operator: User, small_cluster: dict[str, Any]
) -> None:
    sound, failed = (finished_run(small_cluster, operator) for _ in range(2))
    failed.plan = {"nothing": "that any page could work with"}
    failed.save(update_fields=["plan"])
    Job.objects.filter(pk=failed.job_id).update(state=State.FAILED, error="Internal error (IndexError).")
    text = page.get(reverse("planner:run", args=[failed.pk])).content.decode()
    assert "Internal error (IndexError)." in text and "is not shown" in text and "Search again" in text
    assert page.get(reverse("planner:index")).status_code == 200
    compared = page.get(reverse("planner:compare"), {"run": [sound.pk, failed.pk]}, follow=True)
    assert "Tick exactly two finished plans" in compared.content.decode()

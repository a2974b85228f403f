"""Every table of the plan pages says what it holds."""

from __future__ import annotations

import re

import pytest
from django.test import Client
from django.urls import reverse

from planner.models import PlanRun
from tests.planner_app.test_what_if import NUMBERS, planned

__all__ = ["planned"]

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("valkey_url")]


def test_each_table_has_a_caption_of_its_own(page: Client, planned: PlanRun) -> None:
    own = (planned.pk,)
    parts = {
        reverse("planner:run", args=own): {},
        reverse("planner:what_if", args=own): NUMBERS | {"arrival_seconds": 9},
        reverse("planner:worth", args=own): {},
        reverse("planner:index"): {},
        reverse("planner:new"): {},
    }
    for path, asked in parts.items():
        text = page.get(path, asked).content.decode()
        tables = re.findall(r"<table[^>]*>\s*(?:<caption[^>]*>([^<]+)</caption>)?", text)
        assert tables and all(tables), path
        assert len(set(tables)) == len(tables), path

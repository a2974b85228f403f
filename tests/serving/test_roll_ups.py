"""Requests added up: each once, whenever its row came in, and a week reads as its rows would."""

from __future__ import annotations

import json
import math
from datetime import datetime, timedelta
from random import Random

import pytest
from django.test import Client
from django.utils import timezone

from serving.core.tally import Spread, Tally, total
from serving.models import Deployment, RequestRollUp, RequestSample
from serving.services import roll_ups
from tests.serving.test_pages import deployment

__all__ = ["deployment"]

WEEK = timedelta(days=7)


def add(deployment: Deployment, number: int, received_at: datetime, first_token_seconds: float) -> None:
    prefill, decode = deployment.replicas.all()
    RequestSample.objects.create(
        request_id=f"r{number}",
        deployment=deployment,
        received_at=received_at,
        outcome="failed" if number % 10 == 0 else "ok",
        status=200,
        handover="hit" if number % 2 else "fallback",
        prefill_replica=prefill,
        decode_replica=decode,
        queued_seconds=first_token_seconds / 2,
        prefill_seconds=first_token_seconds / 4,
        first_token_seconds=first_token_seconds,
        total_seconds=first_token_seconds + 1,
        output_tokens=11,
    )


def whole_week() -> Tally:
    groups = roll_ups.since(timezone.now() - WEEK, timedelta(hours=1))
    return total(tally for ways in groups.values() for tally in ways.values())


def test_a_percentile_is_off_by_one_hundredth_at_most_and_the_ends_are_exact() -> None:
    rng, spread = Random(3), Spread()
    values = sorted(math.exp(rng.uniform(-7, 7)) for _ in range(2000))
    for value in values:
        spread.add(value)
    for share in (0.0, 0.5, 0.95):
        assert spread.percentile(share) == pytest.approx(values[int(share * 2000)], rel=0.0101)
    assert spread.percentile(1.0) == values[-1]
    assert Spread().percentile(0.5) is None


def test_a_tally_survives_its_column() -> None:
    tally = Tally(requests=3, errors=1)
    tally.first_token.add(0.25)
    assert Tally.from_dict(json.loads(json.dumps(tally.to_dict()))) == tally


def test_every_request_is_counted_once_also_when_its_row_comes_late(deployment: Deployment) -> None:
    now = timezone.now()
    for number in range(30):
        add(deployment, number, now - timedelta(hours=number), 0.5)
    assert whole_week().requests == 30
    roll_ups.roll_up()
    roll_ups.roll_up()
    assert RequestRollUp.objects.exists()
    assert whole_week().requests == 30
    add(deployment, 30, now - timedelta(hours=20), 9.0)
    for _ in range(3):
        assert (whole_week().requests, whole_week().first_token.most) == (31, 9.0)
        roll_ups.roll_up()


def test_a_row_waits_for_the_look_after_the_one_that_first_saw_it(deployment: Deployment) -> None:
    add(deployment, 1, timezone.now(), 0.5)
    roll_ups.roll_up()
    assert not RequestRollUp.objects.exists()
    roll_ups.roll_up()
    assert RequestRollUp.objects.count() == len(roll_ups.STEPS)


def test_the_week_shows_the_same_before_and_after_it_is_added_up(
    admin_client: Client, deployment: Deployment
) -> None:
    now = timezone.now()
    for number in range(20):
        add(deployment, number, now - timedelta(hours=5 * number), 0.1 * (number + 1))
    before = admin_client.get("/traffic/charts/?range=7d").json()
    roll_ups.roll_up()
    roll_ups.roll_up()
    after = admin_client.get("/traffic/charts/?range=7d").json()
    assert before["tiles"] == after["tiles"]
    bars = {series["name"]: series["y"] for series in after["figures"]["handovers"]["data"]}
    assert {name: sum(values) for name, values in bars.items()} == {
        "Handed over": 10,
        "Fell back": 10,
        "Failed or cut": 2,
    }

"""The home page tells what to do next, and what needs a person."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from accounts.models import User
from e2llm_web import home
from inventory.models import Device, LanguageModel, Profile
from serving.models import Deployment, Replica, RequestSample, TrafficSample

pytestmark = pytest.mark.django_db

PLAN: dict[str, Any] = {
    "mode": "mixed",
    "replicas": [
        {
            "role": "mixed",
            "slots": 4,
            "micro_batch": 4,
            "stages": [
                {"device": "box-1", "master": True, "gpu_blocks": 17, "cpu_blocks": 7, "seconds": 0.0612},
            ],
            "pass_seconds": 0.0612,
            "tpot_seconds": 0.0612,
            "prefill_tokens_per_second": 410.0,
            "decode_tokens_per_second": 65.4,
        }
    ],
    "bottleneck": None,
}
CLUSTER: dict[str, Any] = {
    "devices": [],
    "links": {"default": {"bytes_per_second": 115e6, "latency_seconds": 1e-4}},
}


def device(**values: Any) -> Device:
    return Device.objects.create(name="box-1", host="10.0.0.1", username="lab", **values)


def model() -> LanguageModel:
    return LanguageModel.objects.create(
        name="smol", architecture="llama", fingerprint="f", size_bytes=1, shape={}
    )


def deployment(state: str) -> Deployment:
    running = Deployment.objects.create(
        model=model(), name="smol", plan=PLAN, cluster=CLUSTER, state=state, context_tokens=2048
    )
    Replica.objects.create(deployment=running, index=0, role="mixed", slots=4, state="ready", api_key="")
    return running


def opened() -> str:
    client = Client()
    client.force_login(
        User.objects.create(username="ada"), backend="django.contrib.auth.backends.ModelBackend"
    )
    return client.get("/").content.decode()


def test_an_empty_lab_is_asked_for_its_first_device() -> None:
    assert "Add your first device" in opened()


def test_devices_without_a_model_ask_for_a_model() -> None:
    device()
    step = home.next_step(None)
    assert step.action == "Add a model"
    assert "1 device so far: add the others too" in step.text
    assert (step.also, step.also_path) == ("Add another device", reverse("inventory:device_add"))


def test_devices_and_a_model_are_planned_and_deployed() -> None:
    device()
    model()
    assert home.next_step(None).action == "Plan and deploy"


def test_a_running_deployment_leads_to_the_playground_and_shows_its_diagram() -> None:
    deployment("running")
    text = opened()
    assert "Open playground" in text
    assert "17 GPU" in text
    assert "7 CPU" in text


def test_a_lost_device_and_a_changed_key_are_faults_with_a_remedy() -> None:
    device(state="lost", last_seen_at=timezone.now() - timedelta(minutes=4))
    Device.objects.create(name="box-2", state="key_changed")
    found = home.attention(None)
    assert [item.tone for item in found] == ["danger", "danger"]
    assert any("has not answered for 4 min" in item.title for item in found)
    assert any("Compare keys" in item.action for item in found)


def test_a_device_in_maintenance_is_left_alone() -> None:
    device(state="lost", in_maintenance=True)
    assert home.attention(None) == []


def test_a_silent_gateway_under_a_running_deployment_is_named() -> None:
    assert "The gateway reports nothing" in [item.title for item in home.attention(deployment("running"))]


def looked(seconds_ago: float) -> None:
    at = timezone.now() - timedelta(seconds=seconds_ago)
    TrafficSample.objects.create(at=at, gateway="g", waiting=3, running=1, slots=4, output_tokens=9)


def test_a_noisy_profile_asks_to_be_measured_again() -> None:
    values = {"device": device(), "model": model(), "tables": {}, "measured_at": timezone.now()}
    made = Profile.objects.create(**values, residual=0.02)
    assert "noisy" not in opened()
    Profile.objects.filter(pk=made.pk).update(residual=1.59)
    assert home.attention(None)[-1].title == "The profile of smol on box-1 is noisy"
    assert home.attention(None)[-1].remedy.startswith("Noisy: 159 % off the fit; measure again")


def test_old_numbers_are_called_stale() -> None:
    deployment("running")
    looked(seconds_ago=60)
    assert "Stale" in opened()


def test_an_idle_gateway_is_not_called_stale() -> None:
    deployment("running")
    looked(seconds_ago=11)
    assert "Stale" not in opened()


def test_a_lab_that_never_served_anything_shows_no_zeros() -> None:
    looked(seconds_ago=1)
    assert "in the queue now" not in opened()


def test_waiting_times_are_those_of_the_last_quarter_of_an_hour() -> None:
    now = timezone.now()
    for number, minutes in enumerate([1, 2, 3, 30]):
        RequestSample.objects.create(
            request_id=str(number),
            received_at=now - timedelta(minutes=minutes),
            outcome="ok",
            status=200,
            queued_seconds=float(number),
            total_seconds=9.0,
        )
    assert home.waiting_seconds(now) == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(("fraction", "expected"), [(0.5, 3.0), (0.95, 4.0), (1.0, 4.0)])
def test_percentiles_are_values_that_occurred(fraction: float, expected: float) -> None:
    assert home.percentile([1.0, 2.0, 3.0, 4.0], fraction) == expected


def test_more_devices_do_not_mean_more_queries(django_assert_num_queries: Any) -> None:
    device(state="lost")
    with CaptureQueriesContext(connection) as few:
        home.page()
    for number in range(20):
        Device.objects.create(name=f"lab-{number}", state="lost")
    with django_assert_num_queries(len(few)):
        home.page()

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
from inventory.models import Device, LanguageModel, ModelFile, Profile
from jobs.models import Job, State
from serving.models import Deployment, Launch, Replica, RequestSample, TrafficSample
from upkeep.models import Alert

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
    "policy": {"topology": "star"},
    "links": {"default": {"bytes_per_second": 115e6, "latency_seconds": 1e-4}},
}


def device(**values: Any) -> Device:
    return Device.objects.create(name="box-1", host="10.0.0.1", username="lab", **values)


def model() -> LanguageModel:
    """With a copy in the library, and a header of which two numbers make sense."""
    shape = {"weight_bytes": 1, "embedding_length": 1}
    made = LanguageModel.objects.create(
        name="smol", architecture="llama", fingerprint="f", size_bytes=1, shape=shape
    )
    ModelFile.objects.create(model=made, path="/m/smol.gguf", size_bytes=1, seen_at=timezone.now())
    return made


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


def test_an_open_alert_needs_attention_unless_that_is_told_already() -> None:
    lost = device(state="lost", last_seen_at=timezone.now())
    times = {"began_at": timezone.now(), "last_seen_at": timezone.now()}
    device_path = reverse("inventory:device", args=[lost.pk])
    Alert.objects.create(
        kind="device_lost", subject=f"device:{lost.pk}", title="lost", path=device_path, **times
    )
    Alert.objects.create(
        kind="disk_low", subject="disk", title="1 GB is free", path="/settings/about/", **times
    )
    Alert.objects.create(
        kind="wait_long", subject="over", title="over", path="/", resolved_at=timezone.now(), **times
    )
    assert [item.title for item in home.attention(None) if "has not answered" not in item.title] == [
        "1 GB is free"
    ]


def test_a_roll_out_that_failed_beside_what_runs_needs_attention() -> None:
    running = deployment("running")
    failed = Deployment.objects.create(
        model=running.model,
        name="smol",
        plan=PLAN,
        cluster=CLUSTER,
        state="failed",
        wanted="stopped",
        state_reason="box-1 ran out of memory.",
        context_tokens=2048,
        ended_at=timezone.now(),
    )
    found = {item.title: item for item in home.attention(running)}
    item = found[f"The last roll-out, {failed}, failed"]
    assert item.remedy == f"box-1 ran out of memory. {running} goes on."
    assert item.path == f"/deployments/{failed.pk}/"


def test_a_launch_that_came_to_no_plan_needs_attention_until_something_is_deployed() -> None:
    job = Job.objects.create(kind="x", label="x", state=State.FAILED, error="box-1: not reachable")
    found = model()
    Launch.objects.create(job=job, model=found, workload={}, policy={}, stage="ended")
    assert [item.remedy for item in home.attention(None)] == ["box-1: not reachable"]
    Deployment.objects.create(model=found, name="smol", plan=PLAN, cluster=CLUSTER, context_tokens=2048)
    assert home.attention(None) == []


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
    person = User.objects.create(username="ada")
    device(state="lost")
    with CaptureQueriesContext(connection) as few:
        home.page(person)
    for number in range(20):
        Device.objects.create(name=f"lab-{number}", state="lost")
    with django_assert_num_queries(len(few)):
        home.page(person)

"""A hand-over that costs more than it saves is said to, with both numbers and the switch."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pytest
from django.test import Client
from django.utils import timezone

from inventory.core.quantities import seconds_text
from planner.core.plan import Plan
from planner.core.problem import Problem
from planner.core.servers import servers
from serving.gateway.routes import load_wanted
from serving.models import Deployment, RequestSample
from serving.services import handover_cost, traffic
from tests.serving.test_recalibration import deployment as profiled

__all__ = ["profiled"]

TOKENS = 400


@pytest.fixture
def deployment(profiled: Deployment) -> Deployment:
    """The plan as prefill and decode replicas, so that it hands over."""
    replicas = [dict(replica) for replica in profiled.plan["replicas"]] * 2
    replicas = [{**one, "role": role} for one, role in zip(replicas, ("prefill", "decode"), strict=False)]
    profiled.plan = {**profiled.plan, "mode": "disaggregated", "replicas": replicas}
    profiled.state = Deployment.States.RUNNING
    profiled.save()
    profiled.replicas.all().delete()
    for index, role in enumerate(("prefill", "decode")):
        profiled.replicas.create(index=index, role=role, slots=replicas[index]["slots"], api_key="k")
    return profiled


def serve(deployment: Deployment, handover_seconds: float, count: int = 6) -> None:
    prefill, decode = deployment.replicas.all()
    for number in range(count):
        RequestSample.objects.create(
            request_id=f"{handover_seconds}-{number}",
            deployment=deployment,
            received_at=timezone.now() - timedelta(seconds=number),
            outcome="ok",
            status=200,
            prefill_replica=prefill,
            decode_replica=decode,
            handover="hit",
            handover_seconds=handover_seconds,
            prompt_tokens=TOKENS,
            total_seconds=5.0,
        )


def predicted_seconds(deployment: Deployment) -> float:
    decode = servers(Problem.from_dict(deployment.cluster), Plan.from_dict(deployment.plan))[1]
    return float(decode.prompt_seconds(np.array([float(TOKENS)]))[0])


def test_page_says_both_numbers_only_when_the_handover_costs_more(
    deployment: Deployment, admin_client: Client, viewer_client: Client
) -> None:
    page = f"/deployments/{deployment.pk}/"
    serve(deployment, 0.5 * predicted_seconds(deployment))
    assert "costs more than it saves" not in admin_client.get(page).content.decode()
    RequestSample.objects.update(handover_seconds=2 * predicted_seconds(deployment))
    found = handover_cost.cost_of(deployment, traffic.recent_requests(deployment))
    assert found is not None
    assert found.costs_more
    assert found.prefill_seconds == pytest.approx(predicted_seconds(deployment))
    text = admin_client.get(page).content.decode()
    assert "costs more than it saves" in text
    for seconds in (found.handover_seconds, found.prefill_seconds):
        assert seconds_text(seconds) in text
    assert "Switch the hand-over off" in text
    assert "Switch the hand-over off" not in viewer_client.get(page).content.decode()


def test_prompts_that_the_decode_replica_computed_itself_count_before_profiles(
    deployment: Deployment,
) -> None:
    serve(deployment, 0.3)
    for number in range(5):
        RequestSample.objects.create(
            request_id=f"own-{number}",
            deployment=deployment,
            received_at=timezone.now(),
            outcome="ok",
            status=200,
            decode_replica=deployment.replicas.get(role="decode"),
            prompt_tokens=200,
            prefilled_tokens=200,
            prefill_seconds=0.1,
            total_seconds=1.0,
        )
    found = handover_cost.cost_of(deployment, traffic.recent_requests(deployment))
    assert found is not None
    assert (found.is_rate_measured, found.prefill_seconds) == (True, TOKENS / 2000)


def test_a_few_handovers_prove_nothing(deployment: Deployment) -> None:
    serve(deployment, 100.0, count=4)
    assert handover_cost.cost_of(deployment, traffic.recent_requests(deployment)) is None


def test_switch_reaches_the_gateway_and_back(
    deployment: Deployment, admin_client: Client, viewer_client: Client
) -> None:
    path = f"/deployments/{deployment.pk}/handover/"
    assert viewer_client.post(path, {"on": "0"}).status_code == 403
    assert [one.handover for one in load_wanted()] == [True]
    text = admin_client.post(path, {"on": "0"}, follow=True).content.decode()
    assert "The hand-over is switched off" in text
    assert [one.handover for one in load_wanted()] == [False]
    admin_client.post(path, {"on": "1"})
    assert [one.handover for one in load_wanted()] == [True]


def test_plan_without_a_handover_has_no_switch(deployment: Deployment, admin_client: Client) -> None:
    deployment.plan["mode"] = "mixed"
    deployment.save()
    text = admin_client.post(f"/deployments/{deployment.pk}/handover/", {"on": "0"}, follow=True)
    assert "hands nothing over" in text.content.decode()

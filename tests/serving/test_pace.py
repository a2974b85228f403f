"""An answer is held against what its plan says for as many busy slots as there were."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from planner.core.plan import Plan
from planner.core.problem import Problem
from planner.core.servers import servers
from serving.models import Deployment, RequestSample
from serving.services import pace
from tests.serving.test_recalibration import deployment

__all__ = ["deployment"]

TOKENS = 101
PROMPT_SECONDS = 0.5


def answered(deployment: Deployment, busy: int) -> None:
    """As many answers at the same time, each as fast as the plan says for that."""
    replica = deployment.replicas.exclude(role="prefill")[0]
    found = servers(Problem.from_dict(deployment.cluster), Plan.from_dict(deployment.plan))
    seconds = (TOKENS - 1) * found[replica.index].step_seconds[busy]
    received = timezone.now() - timedelta(minutes=busy)
    for number in range(busy):
        RequestSample.objects.create(
            request_id=f"{busy}-{number}",
            deployment=deployment,
            received_at=received,
            outcome=RequestSample.Outcomes.OK,
            status=200,
            decode_replica=replica,
            output_tokens=TOKENS,
            first_token_seconds=PROMPT_SECONDS,
            total_seconds=PROMPT_SECONDS + seconds,
        )


@pytest.mark.parametrize("busy", [1, 2])
def test_answers_as_fast_as_planned_for_their_load_are_as_predicted(
    admin_client: Client, deployment: Deployment, busy: int
) -> None:
    replica = deployment.replicas.exclude(role="prefill")[0]
    assert replica.slots > 2
    answered(deployment, busy)
    (found,) = pace.paces(deployment, list(deployment.requests.all())).values()
    assert found.busy == busy
    assert found.measured == pytest.approx(found.planned, rel=0.01)
    text = admin_client.get(f"/deployments/{deployment.pk}/live/").text
    assert f"with {busy} of {replica.slots} slots busy" in text
    assert "as predicted" in text and "times as fast" not in text


def test_without_answers_the_plan_says_at_what_load_its_number_holds(
    admin_client: Client, deployment: Deployment
) -> None:
    slots = deployment.replicas.exclude(role="prefill")[0].slots
    text = admin_client.get(f"/deployments/{deployment.pk}/live/").text
    assert f"with all {slots} slots busy: none in the last hour" in text

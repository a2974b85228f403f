"""When the traffic is no longer what was planned for."""

from __future__ import annotations

from datetime import timedelta
from random import Random

import pytest
from django.utils import timezone

from inventory.models import LanguageModel
from serving.core.drift import Seen, prediction_drift, workload_drift
from serving.models import Deployment, RequestSample
from serving.services.drift import drifts

WORKLOAD = {"input_tokens": 500, "output_tokens": 200, "arrival_seconds": 1.0}
PREDICTED = {"ttft_seconds": 0.5, "tpot_seconds": 0.05}


def traffic(
    rng: Random,
    count: int = 200,
    prompt: float = 500,
    output: float = 200,
    gap: float = 1.0,
    slow: float = 1.0,
) -> list[Seen]:
    now, seen = 0.0, []
    for _ in range(count):
        now += rng.expovariate(1 / gap)
        tokens = max(2, round(rng.gauss(output, output / 4)))
        first = 0.5 * slow
        seen.append(
            Seen(
                now,
                max(1, round(rng.gauss(prompt, prompt / 4))),
                tokens,
                first,
                first + 0.05 * slow * (tokens - 1),
            )
        )
    return seen


def test_the_planned_traffic_is_no_drift() -> None:
    for seed in range(50):
        requests = traffic(Random(seed))
        assert workload_drift(WORKLOAD, requests) == []
        assert prediction_drift(PREDICTED, requests) == []


def test_longer_prompts_and_faster_arrivals_are_named_with_their_size() -> None:
    found = {
        drift.name: drift for drift in workload_drift(WORKLOAD, traffic(Random(1), prompt=1500, gap=0.2))
    }
    assert found.keys() == {"input_tokens", "arrival_seconds"}
    assert 2.8 < found["input_tokens"].factor < 3.2
    assert 0.15 < found["arrival_seconds"].factor < 0.25


def test_a_few_requests_prove_nothing() -> None:
    assert workload_drift(WORKLOAD, traffic(Random(1), count=10, prompt=5000)) == []


def test_a_slower_fleet_is_named_and_a_faster_one_is_not() -> None:
    slow = prediction_drift(PREDICTED, traffic(Random(1), slow=2.0))
    assert [drift.name for drift in slow] == ["ttft_seconds", "tpot_seconds"]
    assert prediction_drift(PREDICTED, traffic(Random(1), slow=0.3)) == []


def test_requests_without_tokens_are_left_out() -> None:
    failed = [Seen(float(number), None, None, None, 1.0) for number in range(100)]
    assert [drift.name for drift in workload_drift(WORKLOAD, failed)] == []
    assert prediction_drift(PREDICTED, failed) == []


@pytest.mark.django_db
def test_drift_is_told_in_words() -> None:
    model = LanguageModel.objects.create(
        name="m", architecture="llama", fingerprint="f" * 64, size_bytes=1, shape={}
    )
    deployment = Deployment.objects.create(
        model=model,
        name="m",
        plan={"predicted": PREDICTED},
        cluster={"workload": WORKLOAD},
        context_tokens=4096,
    )
    now = timezone.now()
    for number, seen in enumerate(traffic(Random(1), count=40, prompt=1500)):
        RequestSample.objects.create(
            request_id=str(number),
            deployment=deployment,
            received_at=now - timedelta(seconds=seen.received_at),
            outcome=RequestSample.Outcomes.OK,
            status=200,
            prompt_tokens=seen.prompt_tokens,
            output_tokens=seen.output_tokens,
            first_token_seconds=seen.first_token_seconds,
            total_seconds=seen.total_seconds,
        )
    (sentence,) = drifts(deployment)
    assert sentence.startswith("Prompts are 2.9 times") and sentence.endswith("not 500 tokens.")

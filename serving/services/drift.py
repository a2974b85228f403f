"""What changed since a running plan was made, in words."""

from __future__ import annotations

from datetime import timedelta

from django.utils import timezone

from serving.core import drift
from serving.models import Deployment, RequestSample

WINDOW = timedelta(hours=1)
LATEST = 500  # requests that are looked at, so that a page stays quick in a busy hour
WORDS = {
    "input_tokens": ("Prompts are {factor} as long as planned", "{:.0f} tokens"),
    "output_tokens": ("Answers are {factor} as long as planned", "{:.0f} tokens"),
    "arrival_seconds": ("Requests come {factor} as far apart as planned", "{:.2g} s"),
    "ttft_seconds": ("The first token takes {factor} as long as predicted", "{:.2g} s"),
    "tpot_seconds": ("Each token takes {factor} as long as predicted", "{:.2g} s"),
}


def drifts(deployment: Deployment) -> list[str]:
    """Sentences for the last hour; none while the plan fits what is seen."""
    rows = RequestSample.objects.filter(
        deployment=deployment,
        outcome=RequestSample.Outcomes.OK,
        received_at__gt=timezone.now() - WINDOW,
    )
    seen = [
        drift.Seen(
            row.received_at.timestamp(),
            row.prompt_tokens,
            row.output_tokens,
            row.first_token_seconds,
            row.total_seconds,
        )
        for row in rows[:LATEST]
    ]
    if len(seen) < drift.ENOUGH_REQUESTS:
        return []
    found = drift.workload_drift(deployment.cluster["workload"], seen)
    return [sentence(one) for one in [*found, *drift.prediction_drift(deployment.plan["predicted"], seen)]]


def sentence(one: drift.Drift) -> str:
    text, number = WORDS[one.name]
    factor = f"{one.factor:.2g} times"
    return f"{text.format(factor=factor)}: {number.format(one.observed)}, not {number.format(one.planned)}."

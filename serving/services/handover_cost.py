"""What a hand-over costs beside the prompt it saves the decode replica, and the switch between the two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from accounts.models import User
from accounts.services import audit
from planner.core.plan import Plan
from planner.core.problem import Problem
from planner.core.servers import servers
from serving import events, from_inventory
from serving.core.calibration import ENOUGH_REQUESTS
from serving.models import Deployment, RequestSample


class CannotSwitch(Exception):
    """This deployment has no hand-over to switch; the text says why."""


@dataclass(frozen=True)
class HandoverCost:
    """Medians over the hand-overs of the last hour."""

    requests: int
    prompt_tokens: float
    handover_seconds: float
    prefill_seconds: float
    is_rate_measured: (
        bool  # by requests that the decode replicas prefilled themselves, else by their profiles
    )

    @property
    def costs_more(self) -> bool:
        return self.handover_seconds > self.prefill_seconds


def hands_over(deployment: Deployment) -> bool:
    """Whether there is a hand-over that could be switched on or off."""
    if deployment.plan["mode"] != "disaggregated":
        return False
    return deployment.handover_on or not from_inventory.is_recurrent(deployment.model)


def cost_of(deployment: Deployment, requests: Sequence[RequestSample]) -> HandoverCost | None:
    """None while too few prompts were handed over to tell."""
    handed = [
        one
        for one in requests
        if one.handover == RequestSample.Handovers.HIT and one.handover_seconds and one.prompt_tokens
    ]
    if len(handed) < ENOUGH_REQUESTS:
        return None
    there = {replica.pk: replica.index for replica in deployment.replicas.all()}
    handed = [one for one in handed if one.decode_replica_id in there]
    rate = measured_rate(handed, requests)
    if rate is not None:
        seconds = [(one.prompt_tokens or 0) / rate for one in handed]
    else:
        found = servers(Problem.from_dict(deployment.cluster), Plan.from_dict(deployment.plan))
        seconds = [
            float(found[there[one.decode_replica_id or 0]].prompt_seconds(np.array([float(tokens)]))[0])
            for one in handed
            if (tokens := one.prompt_tokens)
        ]
    return HandoverCost(
        requests=len(handed),
        prompt_tokens=median(one.prompt_tokens or 0 for one in handed),
        handover_seconds=median(one.handover_seconds or 0.0 for one in handed),
        prefill_seconds=median(seconds),
        is_rate_measured=rate is not None,
    )


def measured_rate(handed: Sequence[RequestSample], requests: Sequence[RequestSample]) -> float | None:
    """Prompt tokens per second of the same decode replicas, where they computed prompts themselves."""
    decoding = {one.decode_replica_id for one in handed}
    rates = [
        rate
        for one in requests
        if one.prefilled_by_id in decoding and (rate := one.prefill_rate()) is not None
    ]
    return median(rates) if len(rates) >= ENOUGH_REQUESTS else None


def switch(deployment: Deployment, user: User | None, *, on: bool) -> None:
    """Hand prompts over or not from the next request on; what is under way is left as it is."""
    if not hands_over(deployment):
        raise CannotSwitch(f"{deployment} hands nothing over: its plan or its model has no use for it.")
    deployment.handover_on = on
    deployment.save(update_fields=["handover_on"])
    audit(user, "deployment.handover_on" if on else "deployment.handover_off", deployment)
    events.publish_routes()

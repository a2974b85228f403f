"""New profiles from what a deployment did: the tables scaled until they give the seconds that were measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
from django.db import transaction

from accounts.models import User
from accounts.services import audit
from inventory import services as inventory
from inventory.core.profile import scaled
from inventory.core.quantities import counted
from inventory.models import Device, Profile
from planner.core.plan import Plan
from planner.core.problem import Problem
from planner.core.servers import Server, servers
from planner.from_inventory import current_profiles, with_kinds
from serving import from_inventory
from serving.core.calibration import ENOUGH_REQUESTS, Adjustment, Observation, adjustment, together
from serving.models import Deployment, Replica, RequestSample
from serving.services import traffic
from serving.services.memory_beside import TakenMemory, taken_memory

DOUBLE = 2.0


class CannotRecalibrate(Exception):
    """There is nothing to recalibrate from; the text says what is missing."""


@dataclass(frozen=True)
class Compared:
    """One replica in one phase: what its profiles give beside what it did."""

    replica: Replica
    phase: str
    devices: list[str]
    found: Adjustment


def compare(deployment: Deployment) -> list[Compared]:
    """Every replica and phase with enough requests in the last hour, by the profiles that hold now."""
    answered = [
        one for one in traffic.recent_requests(deployment) if one.outcome == RequestSample.Outcomes.OK
    ]
    if len(answered) < ENOUGH_REQUESTS:
        raise CannotRecalibrate(
            f"{counted(len(answered), 'request')} answered in the last hour; {ENOUGH_REQUESTS} are needed. "
            "Send it some, as many at once as usual."
        )
    depth = fmean((one.prompt_tokens or 0) + (one.output_tokens or 0) / 2 for one in answered)
    profiles = profiles_of(deployment)
    once, twice = (predictions(deployment, profiles, depth, factor) for factor in (1.0, DOUBLE))
    rows = []
    for replica in deployment.replicas.all():
        pair = once[replica.index], twice[replica.index]
        devices = [stage["device"] for stage in deployment.plan["replicas"][replica.index]["stages"]]
        for phase, seen in (
            ("decode", decode_steps([one for one in answered if one.decode_replica_id == replica.pk], pair)),
            ("prefill", prompts([one for one in answered if one.prefilled_by_id == replica.pk], pair)),
        ):
            found = adjustment(seen)
            if found is not None:
                rows.append(Compared(replica, phase, devices, found))
    return rows


def compare_memory(deployment: Deployment) -> list[TakenMemory]:
    """Every device with what it took and what its plan counted; empty where a profile is gone."""
    try:
        return taken_memory(deployment, profiles_of(deployment))
    except CannotRecalibrate:
        return []


def recalibrate(deployment: Deployment, user: User | None) -> list[Profile]:
    """New versions of the profiles that were wrong; devices of one replica cannot be told apart and share a factor."""
    profiles = profiles_of(deployment)
    memory = {row.device: row for row in taken_memory(deployment, profiles) if row.is_needed}
    factors: dict[str, dict[str, Adjustment]] = defaultdict(dict)
    try:
        for row in compare(deployment):
            if row.found.is_needed:
                for name in row.devices:
                    factors[name][row.phase] = row.found
    except CannotRecalibrate:
        if not memory:
            raise
    if not factors and not memory:
        raise CannotRecalibrate("What was measured is what the profiles say: nothing was changed.")
    with transaction.atomic():
        made = []
        for name in dict.fromkeys([*factors, *memory]):
            found = factors[name]
            seen = memory[name].to_dict() if name in memory else None
            source = source_of(deployment, found)
            made.append(inventory.recalibrate(profiles[name], factors_of(found), source, seen))
        audit(user, "profiles.recalibrated", deployment, {"profiles": [str(one) for one in made]})
    return made


def factors_of(found: dict[str, Adjustment]) -> dict[str, float]:
    return {phase: one.factor for phase, one in found.items()}


def source_of(deployment: Deployment, found: dict[str, Adjustment]) -> dict[str, Any]:
    """What the new profile says about where its numbers come from."""
    phases = [
        {
            "phase": phase,
            "factor": round(one.factor, 4),
            "requests": one.requests,
            "error_before": one.error_before,
            "error_after": one.error_after,
        }
        for phase, one in found.items()
    ]
    return {"deployment": str(deployment), "deployment_id": deployment.pk, "phases": phases}


def profiles_of(deployment: Deployment) -> dict[str, Profile]:
    """The plan's device names -> the profiles that hold now."""
    ids = dict(deployment.plan_run.device_ids) if deployment.plan_run else {}
    devices: dict[str, Device] = from_inventory.devices_by_name(deployment.plan, ids)
    found = current_profiles(deployment.model, list(devices.values()))
    lacking = [name for name, device in devices.items() if device.pk not in found]
    if lacking:
        raise CannotRecalibrate(
            f"There is no profile of {deployment.model} on {', '.join(lacking)} any more."
        )
    return {name: found[device.pk] for name, device in devices.items()}


def predictions(
    deployment: Deployment, profiles: dict[str, Profile], context_tokens: float, factor: float
) -> list[Server]:
    """The replicas as they would be if every device took `factor` times what its profile says."""
    factors = dict.fromkeys(("decode", "prefill"), factor)
    entries = [
        {**entry, **scaled(profiles[entry["name"]].tables_at(context_tokens), factors)}
        if entry["name"] in profiles
        else entry
        for entry in deployment.cluster["devices"]
    ]
    # Devices of one kind may have profiles of their own by now.
    devices = with_kinds([dict(entry) for entry in entries])
    problem = Problem.from_dict({**deployment.cluster, "devices": devices})
    return servers(problem, Plan.from_dict(deployment.plan))


def decode_steps(requests: Sequence[RequestSample], pair: tuple[Server, Server]) -> list[Observation]:
    """Seconds per token of each request, beside the prediction for as many as were decoded together with it."""
    timed = [(one, rate) for one in requests if (rate := one.tokens_per_second())]
    spans = []
    for one, _ in timed:
        received = one.received_at.timestamp()
        spans.append((received + (one.first_token_seconds or 0.0), received + one.total_seconds))
    once, twice = pair
    seen = []
    for (_, rate), count in zip(timed, together(spans), strict=True):
        busy = min(max(round(count), 1), once.slots)
        seen.append(observation(1 / rate, once.step_seconds[busy], twice.step_seconds[busy]))
    return seen


def prompts(requests: Sequence[RequestSample], pair: tuple[Server, Server]) -> list[Observation]:
    """Seconds of each prompt that had to be computed."""
    once, twice = pair
    seen = []
    for one in requests:
        if one.prefill_seconds and one.prefill_rate():
            length = np.array([float(one.prefilled_tokens or 0)])
            predicted = float(once.prompt_seconds(length)[0]), float(twice.prompt_seconds(length)[0])
            seen.append(observation(one.prefill_seconds, *predicted))
    return seen


def observation(seconds: float, once_seconds: float, twice_seconds: float) -> Observation:
    """Twice the devices' time and the same links: the difference is the devices' share."""
    devices = (twice_seconds - once_seconds) / (DOUBLE - 1.0)
    return Observation(seconds, devices, once_seconds - devices)

"""What deploying a plan would do, in words for the question before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inventory.core.quantities import counted, seconds_text
from inventory.models import LanguageModel, Profile
from jobs import services as jobs
from jobs.models import Job, State
from serving import from_inventory
from serving.core.beside import fits_beside
from serving.core.placement import BadLaunch
from serving.models import Deployment
from serving.runner.operate import TASK
from serving.services.deployments import overlapping


def consequences(plan: dict[str, Any], model: LanguageModel | None, device_ids: Mapping[str, int]) -> str:
    """What stops, for how long nothing answers, and what speaks against it, as sentences."""
    devices = from_inventory.plan_devices(plan)
    said = [f"llama.cpp is started on {counted(len(devices), 'device')} as this plan says."]
    return " ".join(
        [*said, downtime_text(plan) or "Nothing that runs is stopped.", *noise(model, device_ids)]
    )


def gap(plan: dict[str, Any], device_ids: Mapping[str, int]) -> str:
    """Why this plan cannot be put on the devices that there are now; empty when it can."""
    try:
        from_inventory.devices_by_name(plan, dict(device_ids))
    except BadLaunch as error:
        return f"It cannot be deployed. {error}"
    return ""


def gap_of(deployment: Deployment) -> str:
    return gap(deployment.plan, deployment.plan_run.device_ids if deployment.plan_run else {})


def stop_text(deployment: Deployment) -> str:
    """What Stop would do to a deployment now, in sentences."""
    job = jobs.active_for(deployment.subject)
    if job is None or job.params["action"] != "deploy":
        return (
            "Running answers get 30 s to end, then every process of this deployment is stopped and its files are "
            f"removed. New requests for {deployment.name} are refused."
        )
    said = "The roll-out is cancelled: what it has started is stopped, and its files are removed."
    replaced = Deployment.objects.filter(pk__in=job.params.get("replaces", []))
    if not replaced:
        return said
    names = " and ".join(str(other) for other in replaced)
    return f"{said} {names}, which it replaces, goes on, or is started again when it was stopped already."


def downtime_text(plan: dict[str, Any]) -> str:
    """What deploying this plan does to what runs, in a sentence; empty when it touches nothing."""
    replaced = overlapping(plan)
    if not replaced:
        return ""
    names = " and ".join(str(other) for other in replaced)
    is_same = " (this very plan)" if any(other.plan == plan for other in replaced) else ""
    if fits_beside(plan, [other.plan for other in replaced]):
        return (
            f"{names}{is_same} goes on answering until this plan is ready, then it is stopped: no downtime."
        )
    return (
        f"{names}{is_same} is stopped first, because both do not fit in memory: nothing answers until this plan "
        f"is ready, {estimate(replaced)}."
    )


def estimate(replaced: list[Deployment]) -> str:
    """How long a start may take, from the last ones of what is replaced."""
    found = [start for other in replaced if (start := last_start(other)) is not None]
    if not found:
        return "usually seconds to minutes, as long as the weights take to load"
    return f"about {seconds_text(max(found))}, which the last start here took"


def last_start(deployment: Deployment) -> float | None:
    starts = Job.objects.about(deployment.subject).filter(kind=TASK, state=State.SUCCEEDED)
    job = starts.filter(params__action="deploy").first()
    return job.seconds() if job else None


def noise(model: LanguageModel | None, device_ids: Mapping[str, int]) -> list[str]:
    profiles = Profile.objects.filter(model=model, device__in=device_ids.values(), superseded=False)
    return [
        f"Careful: the profile of {profile.device} is {profile.doubt_text}; the plan's numbers may be far off."
        for profile in profiles.select_related("device")
        if profile.doubt_text
    ]


def difference(old: Deployment, new: Deployment) -> str:
    """What another deployment has that this one has not."""
    told = [
        ("the model {}", old.name, new.name),
        ("{}", counted(len(old.plan["replicas"]), "replica"), counted(len(new.plan["replicas"]), "replica")),
        ("the devices {}", listed(old), listed(new)),
        ("{} tokens a slot", f"{old.context_tokens:,}", f"{new.context_tokens:,}"),
    ]
    found = [f"{words.format(before)} instead of {now}" for words, before, now in told if before != now]
    return ", ".join(found) or "the same devices, split otherwise"


def listed(deployment: Deployment) -> str:
    return ", ".join(from_inventory.plan_devices(deployment.plan))

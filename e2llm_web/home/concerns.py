"""What needs a person: faults and warnings with their remedies."""

from __future__ import annotations

from dataclasses import dataclass

from django.urls import reverse
from django.utils import timezone
from django.utils.text import capfirst

from e2llm_web import pulse
from e2llm_web.home.numbers import FRESH
from inventory.core.quantities import seconds_text
from inventory.models import Device, Profile
from jobs.models import State
from serving.models import Deployment, Launch, Replica, TrafficSample
from serving.services.drift import drifts
from upkeep.models import Alert


@dataclass(frozen=True)
class Attention:
    """One thing that a person should look at, with its remedy."""

    tone: str
    title: str
    remedy: str
    path: str
    action: str


def attention(deployment: Deployment | None) -> list[Attention]:
    """Faults first, then warnings."""
    found = [
        *_devices(),
        *_replicas(deployment),
        *_roll_out(deployment),
        *_launch(),
        *_profiles(),
        *_gateway(deployment),
        *_beat(pulse.silence()),
        *_drift(deployment),
    ]
    found += _alerts({item.path for item in found})
    return sorted(found, key=lambda item: item.tone != "danger")


def _alerts(told: set[str]) -> list[Attention]:
    """Open alerts about which nothing else here speaks."""
    alerts = Alert.objects.filter(resolved_at=None).exclude(path__in=told)
    return [Attention("warn", alert.title, alert.text, alert.path, "See what it is") for alert in alerts]


def _devices() -> list[Attention]:
    states = Device.States
    troubled = Device.objects.filter(
        state__in=[states.SUSPECT, states.LOST, states.KEY_CHANGED], in_maintenance=False
    )
    return [_device(device) for device in troubled if not device.closed_reason]


def _device(device: Device) -> Attention:
    path = reverse("inventory:device", args=[device.pk])
    if device.state == Device.States.KEY_CHANGED:
        remedy = (
            "Nothing is sent to it until an admin has compared the new fingerprint with the machine's own."
        )
        path = reverse("inventory:device_host_key", args=[device.pk])
        return Attention("danger", f"The host key of {device.name} has changed", remedy, path, "Compare keys")
    silent = "since it was added"
    if device.last_seen_at:
        silent = f"for {seconds_text((timezone.now() - device.last_seen_at).total_seconds())}"
    remedy = (
        device.state_reason or "Check its power, its network and its SSH server; it is tried again by itself."
    )
    tone = "danger" if device.state == Device.States.LOST else "warn"
    return Attention(tone, f"{device.name} has not answered {silent}", remedy, path, "Open device")


def _replicas(deployment: Deployment | None) -> list[Attention]:
    if deployment is None:
        return []
    path = reverse("serving:detail", args=[deployment.pk])
    found = []
    for replica in deployment.replicas.filter(state=Replica.States.FAILED):
        reason = replica.state_reason or "Its log says why."
        found.append(Attention("danger", f"{replica.label} has failed", reason, path, "Open deployment"))
    starting = (Replica.States.WAITING, Replica.States.STARTING, Replica.States.LOADING)
    for replica in deployment.replicas.filter(restarts__gt=0, state__in=starting):
        title = f"{replica.label} is starting again, try {replica.restarts}"
        found.append(Attention("warn", title, replica.state_reason, path, "Open deployment"))
    return found


def _roll_out(deployment: Deployment | None) -> list[Attention]:
    """The last roll-out, where it failed and what ran before goes on; without that it is the next step."""
    last = Deployment.objects.defer("plan", "cluster").first()
    if deployment is None or last is None or last.state != Deployment.States.FAILED or last == deployment:
        return []
    remedy = f"{last.state_reason or 'Its page says at which step.'} {deployment} goes on."
    path = reverse("serving:detail", args=[last.pk])
    return [Attention("danger", f"The last roll-out, {last}, failed", remedy, path, "See what failed")]


def _launch() -> list[Attention]:
    """The last launch, where it failed before it came to a plan and nothing was deployed since."""
    last = Launch.objects.select_related("job", "model").first()
    if last is None or last.job.state != State.FAILED or last.deployment_id is not None:
        return []
    if Deployment.objects.filter(created_at__gt=last.created_at).exists():
        return []
    path = reverse("serving:launch", args=[last.pk])
    title = f"The last launch of {last.model} did not come to a plan"
    return [Attention("danger", title, last.job.error or "Its page says why.", path, "See why")]


def _profiles() -> list[Attention]:
    current = Profile.objects.current().select_related("device", "model")
    return [
        Attention(
            "warn",
            f"The profile of {profile.model} on {profile.device} is {'stale' if profile.stale_reason else 'noisy'}",
            f"{capfirst(profile.stale_reason or profile.noise_text)}. "
            "Plans made from it may be off until it is measured again.",
            reverse("inventory:profiles"),
            "Measure again",
        )
        for profile in current
        if profile.stale_reason or profile.noise_text
    ]


def _gateway(deployment: Deployment | None) -> list[Attention]:
    latest = TrafficSample.objects.first()
    if deployment is None or deployment.state != Deployment.States.RUNNING:
        return []
    if latest is not None and timezone.now() - latest.at <= 3 * FRESH:
        return []
    return [
        Attention(
            "danger",
            "The gateway reports nothing",
            "Clients may get no answers. Check that its process runs; the supervisor writes why it ended.",
            reverse("serving:traffic"),
            "Open traffic",
        )
    ]


def _beat(silent_seconds: float | None) -> list[Attention]:
    if silent_seconds is None or silent_seconds <= pulse.SILENT_SECONDS:
        return []
    remedy = (
        "Meanwhile devices are not watched, lost work is not taken back and alerts are not sent. Under ./run up it is "
        "started again by itself; else end its process and start it again."
    )
    title = f"Beat, the clock, has given no sign of life for {seconds_text(silent_seconds)}"
    return [Attention("danger", title, remedy, reverse("jobs:index"), "Open jobs")]


def _drift(deployment: Deployment | None) -> list[Attention]:
    sentences = drifts(deployment) if deployment is not None else []
    if not sentences:
        return []
    remedy = f"{' '.join(sentences)} A new plan for the traffic of the last hour may serve it better."
    title = "The traffic is not what the running plan was made for"
    return [Attention("warn", title, remedy, reverse("serving:launch_new"), "Plan again")]

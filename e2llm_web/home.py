"""What the home page shows: what needs a person, the one next step, live numbers, what is running."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Q
from django.urls import reverse
from django.utils import timezone
from django.utils.text import capfirst

from inventory.core.quantities import seconds_text, significant
from inventory.models import NOISY_RESIDUAL, Device, LanguageModel, Profile
from planner.charts import stage_rows
from serving.charts import tones
from serving.models import Deployment, Launch, Replica, RequestSample, TrafficSample
from serving.services.drift import drifts

WINDOW = timedelta(minutes=15)
FRESH = timedelta(seconds=10)
STALE = timedelta(seconds=15)  # an idle gateway writes its numbers every 10 s
ABSENT = "–"


@dataclass(frozen=True)
class Attention:
    """One thing that a person should look at, with its remedy."""

    tone: str
    title: str
    remedy: str
    path: str
    action: str


@dataclass(frozen=True)
class Step:
    label: str
    is_done: bool
    is_next: bool = False


@dataclass(frozen=True)
class NextStep:
    title: str
    text: str
    action: str
    path: str
    icon: str
    also: str = ""
    also_path: str = ""


@dataclass(frozen=True)
class Tile:
    label: str
    value: str
    unit: str
    hint: str
    icon_name: str


def page() -> dict[str, Any]:
    """Context of the whole home page."""
    deployment = current_deployment()
    step = next_step(deployment)
    return {
        "attention": attention(deployment),
        "next_step": step,
        "steps": steps(deployment),
        "deployment": deployment,
        "deployment_tone": tones.DEPLOYMENT[Deployment.States(deployment.state)] if deployment else "",
        "rows": deployment_rows(deployment) if deployment else [],
        **live(),
    }


def live() -> dict[str, Any]:
    """Context of the part that is fetched again every few seconds."""
    now = timezone.now()
    latest = TrafficSample.objects.first()
    return {
        "tiles": tiles(latest, now) if latest and Deployment.objects.exists() else [],
        "is_stale": latest is not None and now - latest.at > STALE,
        "sampled_at": latest.at if latest else None,
    }


def current_deployment() -> Deployment | None:
    """The newest deployment that people want to be running."""
    wanted = Deployment.objects.filter(wanted=Deployment.Wanted.RUNNING, ended_at=None)
    return wanted.select_related("model").first()


def deployment_rows(deployment: Deployment) -> list[dict[str, Any]]:
    """Stage rows of its plan, each with the state of its replica."""
    rows = stage_rows(deployment.plan, deployment.cluster)
    replicas = {replica.index: replica for replica in deployment.replicas.all()}
    for index, row in enumerate(rows):
        if index in replicas:
            state = Replica.States(replicas[index].state)
            row["state"] = {"tone": tones.REPLICA[state], "label": state.label, "icon": ""}
    return rows


def next_step(deployment: Deployment | None) -> NextStep:
    launch = Launch.objects.exclude(stage__in=[Launch.Stages.READY, Launch.Stages.ENDED]).first()
    if deployment is not None and deployment.state in (Deployment.States.RUNNING, Deployment.States.DEGRADED):
        return NextStep(
            f"{deployment.name} is answering",
            "Ask it something, or point an OpenAI client at the gateway.",
            "Open playground",
            reverse("serving:playground"),
            "chat-dots",
        )
    if launch is not None:
        return NextStep(
            launch.Stages(launch.stage).label,
            _launch_text(launch),
            "See the plan and confirm" if launch.stage == Launch.Stages.CONFIRM else "Watch",
            reverse("serving:launch", args=[launch.pk]),
            "rocket-takeoff",
        )
    if deployment is not None:
        return NextStep(
            f"{deployment.name} is {deployment.get_state_display().lower()}",
            deployment.state_reason or "Each host reports what it is doing.",
            "Open the deployment",
            reverse("serving:detail", args=[deployment.pk]),
            "rocket-takeoff",
        )
    return _first_missing()


def _launch_text(launch: Launch) -> str:
    if launch.stage == Launch.Stages.CONFIRM:
        return f"The plan for {launch.model} is ready. Nothing is started before you confirm it."
    return f"{launch.model} is on its way. You can close this page; the work goes on."


def _first_missing() -> NextStep:
    if not Device.objects.exists():
        return NextStep(
            "Add your first device",
            "Give a host name and an SSH user. You compare the fingerprint of its key before anything is sent to it.",
            "Add your first device",
            reverse("inventory:device_add"),
            "plus-lg",
        )
    if not LanguageModel.objects.exists():
        return NextStep(
            "Add a model",
            f"{_more_devices()}Look for GGUF files on the devices, or put one into the server's library.",
            "Add a model",
            reverse("inventory:models"),
            "box-seam",
            "Add another device",
            reverse("inventory:device_add"),
        )
    return NextStep(
        "Plan and deploy",
        "Measures what is missing, finds the best split over your devices, shows it, and starts it after one confirm.",
        "Plan and deploy",
        reverse("serving:launch_new"),
        "rocket-takeoff",
    )


def _more_devices() -> str:
    count = Device.objects.count()
    return f"{count} device{'' if count == 1 else 's'} so far: add the others too, now or later. "


def steps(deployment: Deployment | None) -> list[Step]:
    """The way from an empty lab to an answer, with the first undone step marked."""
    done = {
        "Devices": Device.objects.usable().exists(),
        "Model": LanguageModel.objects.exists(),
        "Profiles": Profile.objects.current().exists(),
        "Plan and deploy": deployment is not None,
        "Chat": RequestSample.objects.filter(outcome=RequestSample.Outcomes.OK).exists(),
    }
    following = next((label for label, is_done in done.items() if not is_done), "")
    return [Step(label, is_done, label == following) for label, is_done in done.items()]


def attention(deployment: Deployment | None) -> list[Attention]:
    """Faults first, then warnings."""
    found = [*_devices(), *_replicas(deployment), *_profiles(), *_gateway(deployment), *_drift(deployment)]
    return sorted(found, key=lambda item: item.tone != "danger")


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


def _profiles() -> list[Attention]:
    doubtful = Profile.objects.current().filter(~Q(stale_reason="") | Q(residual__gt=NOISY_RESIDUAL))
    return [
        Attention(
            "warn",
            f"The profile of {profile.model} on {profile.device} is {'stale' if profile.stale_reason else 'noisy'}",
            f"{capfirst(profile.stale_reason or profile.noise_text)}. "
            "Plans made from it may be off until it is measured again.",
            reverse("inventory:profiles"),
            "Measure again",
        )
        for profile in doubtful.select_related("device", "model")
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


def _drift(deployment: Deployment | None) -> list[Attention]:
    sentences = drifts(deployment) if deployment is not None else []
    if not sentences:
        return []
    remedy = f"{' '.join(sentences)} A new plan for the traffic of the last hour may serve it better."
    title = "The traffic is not what the running plan was made for"
    return [Attention("warn", title, remedy, reverse("planner:new"), "Plan again")]


def tiles(latest: TrafficSample, now: datetime) -> list[Tile]:
    waits = waiting_seconds(now)
    recent = TrafficSample.objects.filter(at__gt=latest.at - FRESH)
    tokens = sum(sample.output_tokens for sample in recent)
    free = max(0, latest.slots - latest.running)
    p50, p95, longest = (percentile(waits, fraction) for fraction in (0.5, 0.95, 1.0))
    hint = f"p95 {_wait(p95)}, longest {_wait(longest)}" if waits else "no requests in 15 min"
    return [
        Tile("Waiting", str(latest.waiting), "requests", "in the queue now", "hourglass-split"),
        Tile("Running", str(latest.running), "requests", "being answered now", "activity"),
        Tile("Free slots", str(free), f"of {latest.slots}", "", "layers"),
        Tile(
            "Tokens", significant(tokens / FRESH.total_seconds()), "per second", "last 10 s", "speedometer2"
        ),
        Tile("Time in the queue", _wait(p50), "median", hint, "clock-history"),
    ]


def waiting_seconds(now: datetime) -> list[float]:
    """Time in the queue of each request of the window, sorted."""
    samples = RequestSample.objects.filter(received_at__gt=now - WINDOW)
    waits = samples.order_by().values_list("queued_seconds", flat=True)
    return sorted(seconds for seconds in waits if seconds is not None)


def percentile(ordered: list[float], fraction: float) -> float | None:
    """Nearest-rank percentile of sorted values."""
    if not ordered:
        return None
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))]


def _wait(seconds: float | None) -> str:
    return ABSENT if seconds is None else seconds_text(seconds)

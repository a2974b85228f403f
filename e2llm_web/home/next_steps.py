"""The one next step, for every state that a lab can be in."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import QuerySet
from django.urls import reverse

from accounts.core.roles import Role
from accounts.models import User
from inventory.core.quantities import counted
from inventory.models import Device, LanguageModel, Profile
from inventory.services import left_out_text
from jobs.models import State
from planner.models import PlanRun
from serving.models import Deployment, Launch, RequestSample

ANSWERING = (Deployment.States.RUNNING, Deployment.States.DEGRADED)
ACTIVE_LAUNCHES = (
    Launch.Stages.PREPARING,
    Launch.Stages.PLANNING,
    Launch.Stages.CONFIRM,
    Launch.Stages.DEPLOYING,
)
IS_STATE = {
    Deployment.States.STARTING: "is starting",
    Deployment.States.STOPPING: "is stopping",
    Deployment.States.STOPPED: "is stopped",
    Deployment.States.FAILED: "does not answer any more",
}


@dataclass(frozen=True)
class Link:
    """Where a step leads, and the least role that may go there."""

    label: str
    path: str
    icon: str
    role: Role = Role.VIEWER


@dataclass(frozen=True)
class NextStep:
    """What to do now; the first link is the one to take."""

    title: str
    text: str
    links: tuple[Link, ...]

    def for_user(self, user: User) -> NextStep:
        """With the links that this person may follow, and a word where the first one is for others."""
        allowed = tuple(link for link in self.links if user.may(link.role))
        first = self.links[0]
        text = self.text if first in allowed else f"{self.text} It takes an {first.role}."
        return NextStep(self.title, text, allowed)


@dataclass(frozen=True)
class Step:
    label: str
    is_done: bool
    is_next: bool = False


def next_step(deployment: Deployment | None) -> NextStep:
    """`deployment` is the one that people want to be running."""
    launch = Launch.objects.filter(stage__in=ACTIVE_LAUNCHES).select_related("model").first()
    if launch is not None:
        return of_launch(launch, deployment)
    if deployment is not None:
        return of_deployment(deployment)
    last = Deployment.objects.defer("plan", "cluster").first()
    if last is not None and last.state == Deployment.States.FAILED:
        return of_failure(last)
    if not Device.objects.exists():
        return first_device()
    if not LanguageModel.objects.usable().exists():
        return first_model()
    return of_plans(last) or of_devices()


def playground() -> Link:
    return Link("Open playground", reverse("serving:playground"), "chat-dots")


def plan_and_deploy() -> Link:
    return Link("Plan and deploy", reverse("serving:launch_new"), "rocket-takeoff", Role.OPERATOR)


def deployment_page(deployment: Deployment, label: str = "Open the deployment") -> Link:
    return Link(label, reverse("serving:detail", args=[deployment.pk]), "rocket-takeoff")


def of_launch(launch: Launch, deployment: Deployment | None) -> NextStep:
    path = reverse("serving:launch", args=[launch.pk])
    more = (playground(),) if deployment is not None and deployment.state in ANSWERING else ()
    if launch.stage == Launch.Stages.CONFIRM:
        text = f"The plan for {launch.model} is ready. Nothing is started before you confirm it."
        first = Link("See the plan and confirm", path, "rocket-takeoff")
    else:
        text = f"{launch.model} is on its way. You can close this page; the work goes on."
        first = Link("Watch", path, "rocket-takeoff")
    return NextStep(launch.Stages(launch.stage).label, text, (first, *more))


def of_deployment(deployment: Deployment) -> NextStep:
    state = Deployment.States(deployment.state)
    if state not in ANSWERING:
        text = deployment.state_reason or "Each host reports what it is doing."
        return NextStep(f"{deployment.name} {IS_STATE[state]}", text, (deployment_page(deployment),))
    again = Link("Plan and deploy again", reverse("serving:launch_new"), "rocket-takeoff", Role.OPERATOR)
    if state == Deployment.States.DEGRADED:
        text = f"{deployment.state_reason} The other replicas go on answering.".strip()
        links = (deployment_page(deployment), playground(), again)
        return NextStep(f"{deployment.name} is answering in part", text, links)
    text = (
        "Ask it something, or point an OpenAI client at the gateway. When devices, models or the traffic have changed, "
        "plan again: what runs goes on until you confirm the new plan."
    )
    return NextStep(f"{deployment.name} is answering", text, (playground(), again))


def of_failure(last: Deployment) -> NextStep:
    text = f"{last.state_reason or 'Its page says at which step.'} Nothing is running now."
    first = deployment_page(last, "See what failed")
    return NextStep(f"The last roll-out, {last}, failed", text, (first, plan_and_deploy()))


def first_device() -> NextStep:
    link = Link("Add your first device", reverse("inventory:device_add"), "plus-lg", Role.ADMIN)
    text = "Give a host name and an SSH user. You compare the fingerprint of its key before anything is sent to it."
    return NextStep("Add your first device", text, (link,))


def first_model() -> NextStep:
    count = counted(Device.objects.count(), "device")
    text = left_out_text() or (
        f"{count} so far: add the others too, now or later. Look for GGUF files on the devices, or put one into the "
        "server's library."
    )
    links = (
        Link("Add a model", reverse("inventory:models"), "box-seam"),
        Link("Add another device", reverse("inventory:device_add"), "plus-lg", Role.ADMIN),
    )
    return NextStep("Add a model", text, links)


def of_plans(last: Deployment | None) -> NextStep | None:
    """A search that goes on, or a plan that was made since the last deployment and can be deployed."""
    runs = (
        PlanRun.objects.only("name", "title", "created_at").exclude(device_ids={}).filter(model__isnull=False)
    )
    searched = runs.filter(job__state__in=(State.PENDING, State.RUNNING)).first()
    if searched is not None:
        link = Link("Watch the search", reverse("planner:run", args=[searched.pk]), "diagram-3")
        text = "The best plan so far can be seen while it goes on, also after you have closed the page."
        return NextStep(f"A plan is searched: {searched}", text, (link,))
    ready = newer_than(last, runs.filter(plan__isnull=False, job__state=State.SUCCEEDED)).first()
    if ready is None:
        return None
    link = Link("See the plan and deploy it", reverse("planner:run", args=[ready.pk]), "diagram-3")
    text = f"{ready}, made and not deployed yet. Nothing is running now."
    return NextStep("A plan is ready", text, (link, plan_and_deploy()))


def newer_than(last: Deployment | None, runs: QuerySet[PlanRun]) -> QuerySet[PlanRun]:
    return runs if last is None else runs.filter(created_at__gt=last.created_at)


def of_devices() -> NextStep:
    if not Device.objects.usable().exists():
        link = Link("Open the devices", reverse("inventory:devices"), "hdd-network")
        text = (
            "A plan needs a device whose key was confirmed, that was probed, has llama.cpp and is neither in "
            "maintenance nor outside its hours. Each device's page says what is missing."
        )
        return NextStep("No device can be used yet", text, (link,))
    text = "Finds the best split over your devices, shows it, and starts it after one confirm."
    if Profile.objects.current().exists():
        return NextStep("Plan and deploy", f"Measures what is missing first. {text}", (plan_and_deploy(),))
    measure = Link("Measure only", reverse("inventory:profiles"), "speedometer2")
    text = f"Your devices have not been timed with a model yet: that comes first, a few minutes each. {text}"
    return NextStep("Measure, plan and deploy", text, (plan_and_deploy(), measure))


def steps(deployment: Deployment | None) -> list[Step]:
    """The way from an empty lab to an answer, with the first undone step marked."""
    done = {
        "Devices": Device.objects.usable().exists(),
        "Model": LanguageModel.objects.usable().exists(),
        "Profiles": Profile.objects.current().exists(),
        "Plan and deploy": deployment is not None,
        "Chat": RequestSample.objects.filter(outcome=RequestSample.Outcomes.OK).exists(),
    }
    following = next((label for label, is_done in done.items() if not is_done), "")
    return [Step(label, is_done, label == following) for label, is_done in done.items()]

"""Plan and deploy: the short form, and the page that follows the work to its confirm and its answer."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from accounts.services import operator_required
from inventory.models import Device, LanguageModel
from jobs import services as jobs
from planner import charts
from planner.from_inventory import CannotPlan
from planner.models import PlanRun
from planner.services import points_of
from serving.core.placement import BadLaunch
from serving.forms import LaunchForm, first_choices
from serving.models import Launch, Replica
from serving.services import consequences, launches
from serving.services.deployments import CannotDeploy
from serving.views.deployments import person

REJECTED = 422


@require_http_methods(["GET", "POST"])
@operator_required
def new(request: HttpRequest) -> HttpResponse:
    form = LaunchForm(request.POST) if request.method == "POST" else LaunchForm(initial=first_choices())
    if request.method == "GET" or not form.is_valid():
        return form_page(request, form, status=200 if request.method == "GET" else REJECTED)
    data = form.cleaned_data
    try:
        launch = launches.start_launch(
            data["model"],
            list(data["devices"]),
            form.workload(),
            form.policy(),
            person(request),
            deploys_unasked=data["deploys_unasked"],
        )
    except CannotPlan as error:
        for gap in error.missing:
            form.add_error("devices", gap.text)
        return form_page(request, form, status=REJECTED)
    except jobs.AlreadyRunning as error:
        messages.warning(request, str(error))
        running = Launch.objects.filter(job=error.job).first()
        return redirect("serving:launch", running.pk) if running else redirect("jobs:detail", error.job.pk)
    return redirect("serving:launch", launch.pk)


def form_page(request: HttpRequest, form: LaunchForm, status: int) -> HttpResponse:
    context = {
        "form": form,
        "has_models": LanguageModel.objects.usable().exists(),
        "has_devices": Device.objects.usable().exists(),
    }
    return render(request, "serving/launch_new.html", context, status=status)


@require_GET
def detail(request: HttpRequest, launch_id: int) -> HttpResponse:
    launch = get_object_or_404(
        Launch.objects.select_related("job", "model", "plan_run", "deployment"), pk=launch_id
    )
    run = PlanRun.objects.filter(job=launch.job).first()
    points = points_of(run) if run else []
    context: dict[str, Any] = {
        "launch": launch,
        "socket": f"/ws/launches/{launch.pk}/",
        "convergence": charts.convergence(points, {}),
        "table": charts.convergence_table(points),
        "last": points[-1] if points else None,
        **plan_context(launch, run),
    }
    if launch.deployment:
        context["roll_out"] = jobs.active_for(launch.deployment.subject)
        context["answers"] = launch.deployment.replicas.filter(state=Replica.States.READY).exists()
    return render(request, "serving/launch.html", context)


@require_GET
def plan(request: HttpRequest, launch_id: int) -> HttpResponse:
    """The best plan so far, fetched again by the live page when it has changed."""
    launch = get_object_or_404(Launch.objects.select_related("job"), pk=launch_id)
    context = plan_context(launch, PlanRun.objects.filter(job=launch.job).first())
    return render(request, "planner/_best.html", context)


def plan_context(launch: Launch, run: PlanRun | None) -> dict[str, Any]:
    if run is None or run.plan is None:
        return {"rows": [], "plan": None, "run": run}
    found = {"rows": charts.stage_rows(run.plan, run.cluster), "plan": run.plan, "run": run}
    if launch.stage == Launch.Stages.CONFIRM:
        found |= charts.plan_page(run.plan, run.cluster)
        found["downtime"] = consequences.consequences(run.plan, run.model, run.device_ids)
    return found


@require_POST
@operator_required
def confirm(request: HttpRequest, launch_id: int) -> HttpResponse:
    launch = get_object_or_404(Launch, pk=launch_id)
    try:
        launches.confirm_launch(launch, person(request))
    except (CannotDeploy, BadLaunch, jobs.AlreadyRunning) as error:
        messages.error(request, str(error))
    return redirect("serving:launch", launch.pk)


@require_POST
@operator_required
def drop(request: HttpRequest, launch_id: int) -> HttpResponse:
    launch = get_object_or_404(Launch.objects.select_related("job", "model"), pk=launch_id)
    launches.drop_launch(launch, person(request))
    messages.info(request, "The launch was ended. What was measured and planned is kept.")
    return redirect("home")

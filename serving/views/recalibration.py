"""What the devices' profiles give beside what a deployment did, and new profiles from it."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_POST

from accounts.services import operator_required
from serving.core.placement import BadLaunch
from serving.models import Deployment
from serving.services import recalibration
from serving.services.recalibration import CannotRecalibrate
from serving.views.deployments import person


@require_GET
def index(request: HttpRequest, deployment_id: int) -> HttpResponse:
    deployment = get_object_or_404(Deployment.objects.select_related("plan_run", "model"), pk=deployment_id)
    rows, memory, problem = [], [], ""
    try:
        memory = recalibration.compare_memory(deployment)
        rows = recalibration.compare(deployment)
    except (CannotRecalibrate, BadLaunch) as error:
        problem = str(error)
    context = {
        "deployment": deployment,
        "rows": rows,
        "problem": problem,
        "memory": memory,
        "is_needed": any(row.found.is_needed for row in rows) or any(row.is_needed for row in memory),
    }
    return render(request, "serving/recalibrate.html", context)


@require_POST
@operator_required
def make(request: HttpRequest, deployment_id: int) -> HttpResponse:
    deployment = get_object_or_404(Deployment.objects.select_related("plan_run", "model"), pk=deployment_id)
    try:
        made = recalibration.recalibrate(deployment, person(request))
    except (CannotRecalibrate, BadLaunch) as error:
        messages.error(request, str(error))
        return redirect("serving:recalibrate", deployment.pk)
    names = ", ".join(str(one) for one in made)
    messages.success(request, f"Made: {names}. The next plan uses them.")
    return redirect("serving:recalibrate", deployment.pk)

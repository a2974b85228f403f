"""Cluster and plan files in and out."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_http_methods

from accounts.models import User
from accounts.services import admin_required, audit, client_address, operator_required
from planner import services
from planner.core.errors import BadDocument
from planner.forms import FileForm
from planner.models import PlanRun
from planner.views.runs import REJECTED, person, started

MEASUREMENTS = "imported_measurements"  # of the session


@require_http_methods(["GET", "POST"])
@operator_required
def from_file(request: HttpRequest) -> HttpResponse:
    form = FileForm(request.POST or None, request.FILES or None)
    if request.method == "POST" and form.is_valid():
        data = form.cleaned_data
        try:
            if "measurements" in request.POST:
                return measurements_taken(request, data["cluster"])
            run = file_run(data, person(request))
        except BadDocument as error:
            return render(
                request, "planner/file.html", {"form": form, "problems": error.problems}, status=REJECTED
            )
        return started(request, run)
    return render(request, "planner/file.html", {"form": form}, status=REJECTED if form.errors else 200)


@admin_required
def measurements_taken(request: HttpRequest, cluster: dict[str, Any]) -> HttpResponse:
    report = services.import_measurements(cluster)
    detail = {"taken": report.taken, "left": report.left}
    audit(person(request), "profiles.imported", cluster["model"]["name"], detail, client_address(request))
    request.session[MEASUREMENTS] = detail
    return redirect("planner:measurements")


@require_GET
@admin_required
def measurements(request: HttpRequest) -> HttpResponse:
    """What the last import of this person took; loading the page again imports nothing."""
    if MEASUREMENTS not in request.session:
        return redirect("planner:file")
    return render(request, "planner/measurements.html", {"report": request.session[MEASUREMENTS]})


def file_run(data: dict[str, Any], user: User) -> PlanRun:
    if data["plan"] is not None:
        return services.import_run(data["cluster"], data["plan"], user)
    return services.start_run(data["cluster"], data["method"], data["seed"], user)


@require_GET
def cluster_file(request: HttpRequest, run_id: int) -> HttpResponse:
    run = get_object_or_404(PlanRun, pk=run_id)
    return download(run.cluster, f"plan-{run.pk}.cluster.json")


@require_GET
def plan_file(request: HttpRequest, run_id: int) -> HttpResponse:
    run = get_object_or_404(PlanRun, pk=run_id, plan__isnull=False)
    return download(run.plan or {}, f"plan-{run.pk}.plan.json")


@require_GET
def example_file(request: HttpRequest) -> HttpResponse:
    return download(services.SMALL_EXAMPLE.cluster(), f"{services.SMALL_EXAMPLE.key}.cluster.json")


def download(document: dict[str, Any], name: str) -> HttpResponse:
    response = JsonResponse(document, json_dumps_params={"indent": 1})
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    return response

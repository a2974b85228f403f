"""The form of a new plan with its memory sum, and the page of workloads."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_GET, require_http_methods

from accounts.services import operator_required
from inventory.models import Device, LanguageModel
from planner import charts, from_inventory, services
from planner.core.errors import BadDocument
from planner.forms import PRESETS, ChangeForm, PlanForm, WorkloadForm
from planner.models import PlanRun
from planner.views.files import download
from planner.views.runs import REJECTED, person, started

RECENT = 8
FIT_FIELDS = ("model", "devices", "context_tokens")


@require_http_methods(["GET", "POST"])
@operator_required
def new(request: HttpRequest) -> HttpResponse:
    if request.method == "GET":
        initial = first_choices(request)
        form = PlanForm(initial=initial)
        return new_page(request, form, PlanForm({**defaults(form), **initial}))
    form = PlanForm(request.POST)
    if not form.is_valid():
        return new_page(request, form, form, status=REJECTED)
    data = form.cleaned_data
    asked = (data["model"], list(data["devices"]), form.workload(), form.policy())
    try:
        if "download" in request.POST:
            return download(services.cluster_of(*asked), "lab.cluster.json")
        run = services.plan_inventory(*asked, data["method"], person(request))
    except from_inventory.CannotPlan as error:
        return new_page(request, form, form, status=REJECTED, missing=error.missing)
    except BadDocument as error:
        form.add_error(None, str(error))
        return new_page(request, form, form, status=REJECTED)
    return started(request, run)


def new_page(
    request: HttpRequest, form: PlanForm, asked: PlanForm, status: int = 200, **extra: Any
) -> HttpResponse:
    """The form, with the memory sum for what `asked` holds."""
    context = {
        "form": form,
        "presets": PRESETS,
        "has_models": LanguageModel.objects.usable().exists(),
        "has_devices": Device.objects.exists(),
        **fit_of(asked),
        **extra,
    }
    return render(request, "planner/new.html", context, status=status)


@require_http_methods(["GET", "POST"])
@operator_required
def change(request: HttpRequest, run_id: int) -> HttpResponse:
    """A new plan from the frozen inputs of an old one, with other numbers."""
    old = get_object_or_404(PlanRun.objects.select_related("model"), pk=run_id)
    form = ChangeForm(request.POST if request.method == "POST" else None, old)
    if form.is_valid():
        inputs = services.changed_inputs(old, form.changes())
        method, seed = form.cleaned_data["method"], form.cleaned_data["seed"]
        behind = (inputs.model, inputs.device_ids)
        try:
            return started(
                request, services.start_run(inputs.cluster, method, seed, person(request), *behind)
            )
        except BadDocument as error:
            form.add_error(None, str(error))
    context = {"run": old, "form": form, "fleet": charts.fleet_rows(old.cluster)}
    return render(request, "planner/change.html", context, status=REJECTED if form.errors else 200)


def defaults(form: PlanForm) -> dict[str, Any]:
    return {name: field.initial for name, field in form.fields.items()}


def first_choices(request: HttpRequest) -> dict[str, Any]:
    """What the address asks for; else the newest usable model on every usable device."""
    newest = LanguageModel.objects.usable().order_by("-created_at").first()
    chosen: dict[str, Any] = {
        "model": newest.pk if newest else None,
        "devices": list(Device.objects.usable().values_list("pk", flat=True)),
    }
    chosen |= request.GET.dict()
    if "devices" in request.GET:
        chosen["devices"] = request.GET.getlist("devices")
    return chosen


def fit_of(form: PlanForm) -> dict[str, Any]:
    """Context of the hint; a form with faults is read as far as it goes."""
    form.is_valid()
    data = form.cleaned_data
    model, devices, context_tokens = (data.get(name) for name in FIT_FIELDS)
    if not (model and devices and context_tokens):
        return {
            "fit": None,
            "wanting": [form.fields[name].label for name in FIT_FIELDS if not data.get(name)],
        }
    chosen = list(devices)
    fit = services.feasibility(model, chosen, context_tokens)
    return {
        "fit": fit,
        "gaps": fit.gaps,
        "too_long": 0 < fit.context_limit < context_tokens,
        "outdated": from_inventory.outdated_pairs(chosen),
        "doubtful": from_inventory.profile_notes(from_inventory.current_profiles(model, chosen), chosen),
        "machines": from_inventory.machine_notes(chosen),
    }


@require_GET
@operator_required
def hint(request: HttpRequest) -> HttpResponse:
    return render(request, "planner/_hint.html", fit_of(PlanForm(request.GET)))


@require_GET
def workload(request: HttpRequest) -> HttpResponse:
    form = WorkloadForm(initial=request.GET.dict())
    recent = PlanRun.objects.only("name", "title", "cluster", "created_at")[:RECENT]
    used = [
        {
            "run": run,
            "rows": charts.workload_rows(run.cluster)[:6],
            "query": urlencode(run.cluster["workload"]),
        }
        for run in recent
    ]
    return render(request, "planner/workload.html", {"form": form, "presets": PRESETS, "used": used})

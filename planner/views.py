"""Plans: the list, the form, the running search, the finished plan, comparison and files."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from accounts.core.asked_number import asked_number
from accounts.models import User
from accounts.services import admin_required, audit, client_address, operator_required
from inventory.models import Device, LanguageModel
from planner import charts, services
from planner.core.errors import BadDocument
from planner.forms import PRESETS, FileForm, PlanForm, WhatIfForm, WorkloadForm
from planner.from_inventory import CannotPlan
from planner.models import PlanRun

PAGE_SIZE = 25
RECENT = 8
REJECTED = 422
FIT_FIELDS = ("model", "devices", "context_tokens")
MEASUREMENTS = "imported_measurements"  # of the session


@require_GET
def index(request: HttpRequest) -> HttpResponse:
    runs = PlanRun.objects.select_related("job__started_by").defer("cluster", "checkpoint")
    page = Paginator(runs, PAGE_SIZE).get_page(request.GET.get("page"))
    rows = [{"run": run, "summary": charts.run_summary(run.plan)} for run in page]
    return render(request, "planner/index.html", {"page": page, "rows": rows, "examples": services.EXAMPLES})


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
    try:
        run = services.plan_inventory(
            data["model"],
            list(data["devices"]),
            form.workload(),
            form.policy(),
            data["method"],
            person(request),
        )
    except CannotPlan as error:
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
        "has_models": LanguageModel.objects.exists(),
        "has_devices": Device.objects.exists(),
        **fit_of(asked),
        **extra,
    }
    return render(request, "planner/new.html", context, status=status)


def defaults(form: PlanForm) -> dict[str, Any]:
    return {name: field.initial for name, field in form.fields.items()}


def first_choices(request: HttpRequest) -> dict[str, Any]:
    """What the address asks for; else the newest model on every usable device."""
    newest = LanguageModel.objects.order_by("-created_at").first()
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
    fit = services.feasibility(model, list(devices), context_tokens)
    too_long = 0 < fit.context_limit < context_tokens
    return {"fit": fit, "gaps": fit.gaps, "too_long": too_long}


@require_GET
@operator_required
def hint(request: HttpRequest) -> HttpResponse:
    return render(request, "planner/_hint.html", fit_of(PlanForm(request.GET)))


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


@require_POST
@operator_required
def example(request: HttpRequest) -> HttpResponse:
    chosen = next((item for item in services.EXAMPLES if item.key == request.POST.get("example")), None)
    if chosen is None:
        raise Http404("There is no such example.")
    cluster = chosen.cluster()
    run = services.start_run(
        cluster, PlanRun.Methods.AUTO, 0, person(request), name=f"Example: {chosen.name}"
    )
    return started(request, run)


def person(request: HttpRequest) -> User:
    assert isinstance(request.user, User), "every page but sign-in asks for a logged-in user"
    return request.user


def started(request: HttpRequest, run: PlanRun) -> HttpResponse:
    detail = {"run": run.pk, "method": run.method, "seed": run.seed}
    audit(person(request), "plan.started", run.name, detail, client_address(request))
    return redirect("planner:run", run.pk)


@require_GET
def run(request: HttpRequest, run_id: int) -> HttpResponse:
    """One address for a run: the search while it goes on, then the plan, or why there is none."""
    run = get_object_or_404(PlanRun.objects.select_related("job__started_by", "model"), pk=run_id)
    return run_page(request, run)


def run_page(
    request: HttpRequest, run: PlanRun, what_if: WhatIfForm | None = None, status: int = 200
) -> HttpResponse:
    if run.job.is_active:
        return render(request, "planner/searching.html", searching(run), status=status)
    if run.plan is None:
        return render(request, "planner/refused.html", refused(run), status=status)
    context = finished(run) | ({"what_if": what_if} if what_if else {})
    return render(request, "planner/plan.html", context, status=status)


def searching(run: PlanRun) -> dict[str, Any]:
    points = services.points_of(run)
    return {
        "run": run,
        "socket": f"/ws/plans/{run.pk}/",
        "last": points[-1] if points else None,
        "convergence": charts.convergence(points, {}),
        "table": charts.convergence_table(points),
        **best_so_far(run),
    }


def refused(run: PlanRun) -> dict[str, Any]:
    return {
        "run": run,
        "query": form_query(run),
        "refusal": charts.refusal_facts(run.refusal) if run.refusal else None,
        "inputs": charts.workload_rows(run.cluster),
        "note": run.cluster.get("note", ""),
    }


def form_query(run: PlanRun) -> str:
    """The new-plan form's address with the inputs of this run filled in."""
    fields: dict[str, Any] = {**run.cluster["workload"], **run.cluster["policy"], "method": run.method}
    if run.model_id:
        fields |= {"model": run.model_id, "devices": list(run.device_ids.values())}
    return urlencode(fields, doseq=True)


def best_so_far(run: PlanRun) -> dict[str, Any]:
    return {"rows": charts.stage_rows(run.plan, run.cluster) if run.plan else [], "plan": run.plan}


def finished(run: PlanRun) -> dict[str, Any]:
    assert run.plan is not None, "a run without a plan has its own page"
    points = services.points_of(run)
    waits = services.waiting_times(run.cluster, run.plan)
    return {
        "run": run,
        "waiting": charts.waiting({"This plan": waits}),
        "waiting_table": charts.waiting_table(waits),
        "query": form_query(run),
        "what_if": WhatIfForm(cluster=run.cluster),
        **charts.plan_page(run.plan, run.cluster, is_simulated=run.is_simulated),
        "idle": [
            {"device": name, "reason": reason}
            for name, reason in services.idle_reasons(run.cluster, run.plan).items()
        ],
        "margins": services.margin_sentences(run.cluster, run.plan),
        "has_worth": 1 < len(run.cluster["devices"]) <= services.EXACT_DEVICES,
        "convergence": charts.convergence(points, charts.baseline_waits(run.plan)) if points else None,
        "convergence_table": charts.convergence_table(points),
    }


@require_GET
def stages(request: HttpRequest, run_id: int) -> HttpResponse:
    run = get_object_or_404(PlanRun.objects.defer("checkpoint"), pk=run_id)
    return render(request, "planner/_best.html", best_so_far(run))


@require_GET
@operator_required
def what_if(request: HttpRequest, run_id: int) -> HttpResponse:
    """The plan for changed inputs, beside the one that stands."""
    run = get_object_or_404(PlanRun, pk=run_id, plan__isnull=False)
    form = WhatIfForm(request.GET, cluster=run.cluster)
    if not form.is_valid():
        return render(request, "planner/_what_if_result.html", {"run": run, "form": form})
    cluster = changed(run, form)
    try:
        found = services.what_if(cluster)
    except BadDocument as error:
        return render(
            request, "planner/_what_if_result.html", {"run": run, "form": form, "problems": error.problems}
        )
    context = {"run": run, "form": form, "found": found, "query": request.GET.urlencode()}
    if found.plan:
        plan = found.plan.to_dict()
        then, now = charts.plan_page(plan, cluster), charts.plan_page(run.plan or {}, run.cluster)
        context |= {**then, "comparison": charts.comparison_rows(now, then)}
    return render(request, "planner/_what_if_result.html", context)


@require_GET
@operator_required
def worth(request: HttpRequest, run_id: int) -> HttpResponse:
    """What leaving out each device would cost."""
    run = get_object_or_404(PlanRun, pk=run_id, plan__isnull=False)
    if not 1 < len(run.cluster["devices"]) <= services.EXACT_DEVICES:
        raise Http404(f"This is worked out for 2 to {services.EXACT_DEVICES} devices.")
    assert run.plan is not None, "the query asks for one"
    own_seconds = run.plan["predicted"]["max_wait_seconds"]
    rows = [
        charts.worth_row(item.device, item.without_seconds, item.reason, item.twice_seconds, own_seconds)
        for item in services.worth_of_devices(run.cluster)
    ]
    return render(request, "planner/_worth.html", {"worth": rows})


def changed(run: PlanRun, form: WhatIfForm) -> dict[str, Any]:
    without = form.cleaned_data["without"]
    return services.changed_cluster(run.cluster, form.workload(), form.policy(), without)


def not_made(
    request: HttpRequest, old: PlanRun, form: WhatIfForm | None, problems: list[str]
) -> HttpResponse:
    """The page of the plan that stands, with what was typed and why no plan is made of it."""
    faults = [f"{field.label}: {error}" for field in form or () for error in field.errors]
    for text in faults + problems:
        messages.error(request, text)
    return run_page(request, old, form, status=REJECTED)


@require_POST
@operator_required
def again(request: HttpRequest, run_id: int) -> HttpResponse:
    """The same inputs once more, or with the changes of the what-if form."""
    old = get_object_or_404(PlanRun, pk=run_id)
    form, cluster, name = None, old.cluster, old.name
    if "arrival_seconds" in request.POST:
        form = WhatIfForm(request.POST, cluster=old.cluster)
        if not form.is_valid():
            return not_made(request, old, form, [])
        cluster, name = changed(old, form), ""
    kept = {device["name"] for device in cluster["devices"]}
    ids = {name: pk for name, pk in old.device_ids.items() if name in kept}
    try:
        run = services.start_run(cluster, old.method, old.seed, person(request), old.model, ids, name)
    except BadDocument as error:
        return not_made(request, old, form, error.problems)
    return started(request, run)


@require_GET
def compare(request: HttpRequest) -> HttpResponse:
    ids = [asked_number(text) for text in request.GET.getlist("run")]
    found = PlanRun.objects.filter(plan__isnull=False).in_bulk(ids)
    runs = [found[pk] for pk in dict.fromkeys(ids) if pk in found]
    if len(runs) != 2:
        messages.error(request, "Tick exactly two finished plans to compare them.")
        return redirect("planner:index")
    sides = [{"run": run, **charts.plan_page(run.plan or {}, run.cluster)} for run in runs]
    rows = charts.comparison_rows(*sides)
    return render(request, "planner/compare.html", {"sides": sides, "comparison": rows})


@require_GET
def cluster_file(request: HttpRequest, run_id: int) -> HttpResponse:
    run = get_object_or_404(PlanRun, pk=run_id)
    return download(run.cluster, f"plan-{run.pk}.cluster.json")


@require_GET
def plan_file(request: HttpRequest, run_id: int) -> HttpResponse:
    run = get_object_or_404(PlanRun, pk=run_id, plan__isnull=False)
    return download(run.plan or {}, f"plan-{run.pk}.plan.json")


def download(document: dict[str, Any], name: str) -> HttpResponse:
    response = JsonResponse(document, json_dumps_params={"indent": 1})
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    return response


@require_GET
def workload(request: HttpRequest) -> HttpResponse:
    form = WorkloadForm(initial=request.GET.dict())
    recent = PlanRun.objects.only("name", "cluster", "created_at")[:RECENT]
    used = [
        {
            "run": run,
            "rows": charts.workload_rows(run.cluster)[:6],
            "query": urlencode(run.cluster["workload"]),
        }
        for run in recent
    ]
    return render(request, "planner/workload.html", {"form": form, "presets": PRESETS, "used": used})

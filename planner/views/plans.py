"""The list of plans, the examples that come with the product, and two plans beside each other."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_POST

from accounts.core.asked_number import asked_number
from accounts.services import operator_required
from planner import charts, services
from planner.models import PlanRun
from planner.views.runs import person, started

PAGE_SIZE = 25


@require_GET
def index(request: HttpRequest) -> HttpResponse:
    runs = PlanRun.objects.select_related("job__started_by").defer("cluster", "checkpoint")
    page = Paginator(runs, PAGE_SIZE).get_page(request.GET.get("page"))
    rows = [{"run": run, "summary": summary(run)} for run in page]
    return render(request, "planner/index.html", {"page": page, "rows": rows, "examples": services.EXAMPLES})


def summary(run: PlanRun) -> dict[str, Any]:
    is_simulated = services.has_simulated_waits(run)
    plan = services.plan_of(run) if run.shown_plan and is_simulated else run.shown_plan
    return charts.run_summary(plan, run.origin, is_simulated=is_simulated)


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


@require_GET
def compare(request: HttpRequest) -> HttpResponse:
    ids = [asked_number(text) for text in request.GET.getlist("run")]
    found = PlanRun.objects.select_related("job").filter(plan__isnull=False).in_bulk(ids)
    runs = [found[pk] for pk in dict.fromkeys(ids) if pk in found and found[pk].shown_plan]
    if len(runs) != 2:
        messages.error(request, "Tick exactly two finished plans to compare them.")
        return redirect("planner:index")
    plans = [services.plan_of(run) for run in runs]
    bursts = [services.one_burst(run.cluster, plan) for run, plan in zip(runs, plans, strict=True)]
    sides = [
        {"run": run, **charts.plan_page(plan, run.cluster, run.origin, burst)}
        for run, plan, burst in zip(runs, plans, bursts, strict=True)
    ]
    curves = {
        f"#{run.pk} {run}": charts.wait_curve(burst.wait_seconds)
        for run, burst in zip(runs, bursts, strict=True)
    }
    context = {
        "sides": sides,
        "comparison": [*charts.comparison_rows(*sides), *charts.detail_rows(*sides)],
        "differing": charts.differing_inputs(sides[0], sides[1], (runs[0].cluster, runs[1].cluster)),
        "verdict": charts.verdict(*[plan["predicted"]["max_wait_seconds"] for plan in plans]),
        "waiting": charts.waiting(curves),
        "waiting_table": charts.waiting_table(curves),
    }
    return render(request, "planner/compare.html", context)

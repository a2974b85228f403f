"""One address for a run: the running search, then the plan, or why there is none."""

from __future__ import annotations

from secrets import token_hex
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET

from accounts.models import User
from accounts.services import audit, client_address
from inventory.models import Device, LanguageModel
from planner import charts, events, services
from planner.forms import TitleForm, WhatIfForm
from planner.models import PlanRun

REJECTED = 422


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
    if run.shown_plan is None:
        return render(request, "planner/refused.html", refused(run), status=status)
    context = finished(run) | ({"what_if": what_if} if what_if else {})
    return render(request, "planner/plan.html", context, status=status)


def searching(run: PlanRun) -> dict[str, Any]:
    points = services.points_of(run)
    return {
        "run": run,
        "meanings": charts.SEARCH,
        "socket": f"/ws/plans/{run.pk}/",
        "last": points[-1] if points else None,
        "best": events.best_text(points[-1] if points else None),
        "gap": events.gap_text(points[-1] if points else None),
        "convergence": charts.convergence(points, {}),
        "table": charts.convergence_table(points),
        **best_so_far(run),
    }


def refused(run: PlanRun) -> dict[str, Any]:
    return {
        "run": run,
        "change_path": change_path(run),
        **history(run),
        "refusal": charts.refusal_facts(run.refusal) if run.refusal else None,
        "inputs": charts.input_rows(run.cluster),
        "note": run.cluster.get("note", ""),
    }


def history(run: PlanRun) -> dict[str, Any]:
    """Context of the panel with the title and the removal of a run."""
    return {
        "title_form": TitleForm(initial={"title": run.title}),
        "removal_refusal": services.removal_refusal(run),
    }


def change_path(run: PlanRun) -> str:
    """Where the inputs of this run are changed: the new-plan form where that offers its model and devices."""
    ids = list(run.device_ids.values())
    is_offered = run.model is not None and LanguageModel.objects.usable().contains(run.model)
    if not is_offered or not ids or Device.objects.filter(pk__in=ids).count() < len(ids):
        return reverse("planner:change", args=[run.pk])
    fields = {**run.cluster["workload"], **run.cluster["policy"], "method": run.method}
    fields |= {"model": run.model_id, "devices": ids}
    return f"{reverse('planner:new')}?{urlencode(fields, doseq=True)}"


def what_if_form(run: PlanRun, data: QueryDict | None = None) -> WhatIfForm:
    return WhatIfForm(data, cluster=run.cluster, offers=services.alternatives(run))


def best_so_far(run: PlanRun) -> dict[str, Any]:
    if run.plan is None:
        return {"rows": [], "plan": None}
    rows = charts.stage_rows(run.plan, run.cluster)
    return {"rows": rows, "plan": run.plan, "is_relaxed": charts.is_relaxed(run.plan)}


def finished(run: PlanRun) -> dict[str, Any]:
    assert run.plan is not None, "a run without a plan has its own page"
    points = services.points_of(run)
    burst = services.one_burst(run.cluster, run.plan)
    curves = {"This plan": charts.wait_curve(burst.wait_seconds), **charts.baseline_curves(run.plan)}
    return {
        "run": run,
        "waiting": charts.waiting(curves),
        "waiting_table": charts.waiting_table(curves),
        "change_path": change_path(run),
        **history(run),
        "what_if": what_if_form(run),
        "asker": token_hex(8),
        **charts.plan_page(services.plan_of(run), run.cluster, run.origin, burst),
        "idle": [
            {"device": name, "reason": reason}
            for name, reason in services.idle_reasons(run.cluster, run.plan).items()
        ],
        "margins": services.margin_sentences(run.cluster, run.plan),
        "worth_plans": 2 * len(run.cluster["devices"]) if len(run.cluster["devices"]) > 1 else 0,
        "has_worth": 1 < len(run.cluster["devices"]) <= services.WORTH_DEVICES,
        "convergence": charts.convergence(points, charts.baseline_waits(run.plan)) if points else None,
        "convergence_table": charts.convergence_table(points),
    }


@require_GET
def stages(request: HttpRequest, run_id: int) -> HttpResponse:
    run = get_object_or_404(PlanRun.objects.defer("checkpoint"), pk=run_id)
    return render(request, "planner/_best.html", best_so_far(run))

"""What the plan would be if its inputs were others, and a new plan made of them."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_GET, require_POST

from accounts.services import operator_required
from planner import charts, services
from planner.core.errors import BadDocument
from planner.forms import WhatIfForm
from planner.models import PlanRun
from planner.views.runs import REJECTED, person, run_page, started, what_if_form


@require_GET
@operator_required
def what_if(request: HttpRequest, run_id: int) -> HttpResponse:
    """The plan for changed inputs, beside the one that stands."""
    run = get_object_or_404(PlanRun.objects.select_related("model", "job"), pk=run_id, plan__isnull=False)
    form = what_if_form(run, request.GET)
    context: dict[str, Any] = {"run": run, "form": form}
    if form.is_valid():
        inputs = services.changed_inputs(run, form.changes())
        try:
            context |= answer(run, inputs, services.what_if(inputs.cluster, request.GET.get("asker", "")))
        except services.Superseded:
            return HttpResponse(status=204)
        except BadDocument as error:
            context["problems"] = error.problems
    return render(request, "planner/_what_if_result.html", context)


def answer(run: PlanRun, inputs: services.Inputs, found: services.WhatIf) -> dict[str, Any]:
    context: dict[str, Any] = {"found": found, "remarks": inputs.remarks}
    if found.plan:
        now_plan, then_plan = services.plan_of(run), found.plan.to_dict()
        now_burst = services.one_burst(run.cluster, now_plan)
        then_burst = services.one_burst(inputs.cluster, then_plan)
        now = charts.plan_page(now_plan, run.cluster, run.origin, now_burst)
        then = charts.plan_page(then_plan, inputs.cluster, burst=then_burst)
        context |= {**then, "comparison": charts.comparison_rows(now, then)}
        context["verdict"] = charts.change_sentence(now_plan, then_plan)
    return context


@require_GET
@operator_required
def worth(request: HttpRequest, run_id: int) -> HttpResponse:
    """What leaving out each device would cost."""
    run = get_object_or_404(PlanRun, pk=run_id, plan__isnull=False)
    if not 1 < len(run.cluster["devices"]) <= services.WORTH_DEVICES:
        raise Http404(f"This is worked out for 2 to {services.WORTH_DEVICES} devices.")
    own = services.plan_of(run)["predicted"]
    rows = [
        charts.worth_row(item.device, item.without, item.reason, item.twice, own)
        for item in services.worth_of_devices(run.cluster)
    ]
    return render(request, "planner/_worth.html", {"worth": rows})


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
    old = get_object_or_404(PlanRun.objects.select_related("model"), pk=run_id)
    form, inputs, name = None, services.Inputs(old.cluster, old.model, old.device_ids, []), old.name
    if "arrival_seconds" in request.POST:
        form = what_if_form(old, request.POST)
        if not form.is_valid():
            return not_made(request, old, form, [])
        inputs, name = services.changed_inputs(old, form.changes()), ""
    try:
        run = services.start_run(
            inputs.cluster, old.method, old.seed, person(request), inputs.model, inputs.device_ids, name
        )
    except BadDocument as error:
        return not_made(request, old, form, error.problems)
    return started(request, run)

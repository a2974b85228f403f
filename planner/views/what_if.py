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
from planner.views.runs import REJECTED, person, run_page, started


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

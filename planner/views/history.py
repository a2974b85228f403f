"""The history of runs: their titles, and removing them."""

from __future__ import annotations

from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.http import require_POST

from accounts.services import audit, client_address, operator_required
from planner import services
from planner.forms import TitleForm
from planner.models import PlanRun
from planner.views.runs import person


@require_POST
@operator_required
def entitle(request: HttpRequest, run_id: int) -> HttpResponse:
    run = get_object_or_404(PlanRun.objects.only("name", "title"), pk=run_id)
    form = TitleForm(request.POST)
    if not form.is_valid():
        messages.error(request, f"Title: {form.errors['title'][0]}")
        return redirect("planner:run", run_id)
    run.title = form.cleaned_data["title"]
    with transaction.atomic():
        run.save(update_fields=["title"])
        audit(
            person(request),
            "plan.titled",
            run.name,
            {"run": run.pk, "title": run.title},
            client_address(request),
        )
    return redirect("planner:run", run_id)


@require_POST
@operator_required
def remove(request: HttpRequest, run_id: int) -> HttpResponse:
    run = get_object_or_404(PlanRun.objects.select_related("job"), pk=run_id)
    try:
        with transaction.atomic():
            services.remove_run(run)
            audit(person(request), "plan.removed", str(run), {"run": run_id}, client_address(request))
    except services.RunInUse as error:
        messages.error(request, str(error))
        return redirect("planner:run", run_id)
    messages.success(request, f"{run} #{run_id} is removed.")
    return redirect("planner:index")

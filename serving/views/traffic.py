"""Traffic: live charts, the table of requests, one request inspected."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_POST

from accounts.core.asked_number import asked_number
from accounts.services import admin_required, audit, client_address
from serving.charts import request_rows
from serving.charts.traffic import RANGES, chosen_range
from serving.forms import RequestFilterForm
from serving.models import RequestSample, RequestText
from serving.services import replica_pair, traffic
from serving.views.deployments import person

PAGE_SIZE = 50


@require_GET
def index(request: HttpRequest) -> HttpResponse:
    range_ = chosen_range(request.GET.get("range"))
    form = RequestFilterForm(request.GET)
    page = Paginator(traffic.matching(form.wanted()), PAGE_SIZE).get_page(request.GET.get("page"))
    context: dict[str, Any] = {
        "ranges": RANGES,
        "range": range_,
        "is_live": range_ is RANGES[0],
        "form": form,
        "page": page,
        "rows": [request_rows.row(sample) for sample in page],
        **traffic.page(range_),
    }
    return render(request, "serving/traffic.html", context)


@require_GET
def charts(request: HttpRequest) -> JsonResponse:
    """The figures and tiles of a range again, for the live page."""
    found = traffic.page(chosen_range(request.GET.get("range")))
    return JsonResponse({"figures": found["figures"], "tiles": found["tiles"]})


@require_GET
def replicas(request: HttpRequest) -> HttpResponse:
    """Two replicas side by side: planned, measured, and where their requests waited."""
    range_ = chosen_range(request.GET.get("range", "1h"))
    offered = replica_pair.choices()
    left, right = (asked_number(request.GET.get(side, "")) for side in ("left", "right"))
    pair = replica_pair.chosen(offered, left, right)
    context: dict[str, Any] = {"ranges": RANGES, "range": range_, "offered": offered}
    if pair is not None:
        context |= replica_pair.compared(pair, range_)
    return render(request, "serving/replicas.html", context)


@require_GET
def inspect(request: HttpRequest, request_id: str) -> HttpResponse:
    rows = RequestSample.objects.select_related(
        "deployment", "api_key__user", "prefill_replica__deployment", "decode_replica__deployment"
    )
    sample = get_object_or_404(rows, request_id=request_id)
    shown = request_rows.row(sample)
    context = {
        "sample": sample,
        "tone": shown["tone"],
        "handover_tone": shown["handover_tone"],
        "path": shown["path"],
        "rate": shown["rate"],
        "bars": request_rows.timeline(sample),
        "reasons": request_rows.reasons(sample),
        "moved": request_rows.handover_text(sample),
        "prompt": request_rows.prompt_text(sample),
        "answer": request_rows.answer_text(sample),
        "asker": request_rows.asker_text(sample),
        "has_text": person(request).is_admin and RequestText.objects.filter(sample=sample).exists(),
    }
    return render(request, "serving/request.html", context)


@require_POST
@admin_required
def text(request: HttpRequest, request_id: str) -> HttpResponse:
    """What was asked, for an admin; each look is written down."""
    found = get_object_or_404(RequestText, sample=request_id)
    audit(person(request), "request.text_read", request_id, address=client_address(request))
    return render(request, "serving/_request_text.html", {"text": found.prompt, "kept_at": found.kept_at})


@require_GET
def workload(request: HttpRequest) -> HttpResponse:
    """The new-plan form filled with the traffic of the last hour."""
    found = traffic.workload_of_last_hour()
    if found is None:
        messages.info(request, "Fewer than 5 requests were answered in the last hour: too few to plan from.")
        return redirect("planner:workload")
    return redirect(f"/plans/new/?{urlencode(found)}")

"""How long things are kept, and what goes next."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from accounts.services import admin_required, client_address
from serving.models import Retention
from serving.views.deployments import person
from upkeep.forms import RetentionForm
from upkeep.services import retention


@require_http_methods(["GET", "POST"])
@admin_required
def index(request: HttpRequest) -> HttpResponse:
    """A dry run shows what the times that were typed would delete; saving is a second button."""
    current = Retention.current()
    before = retention.values(current)
    form = RetentionForm(request.POST or None, instance=current)
    shown = current
    if request.method == "POST":
        if form.is_valid() and "save" in request.POST:
            retention.change(form.instance, person(request), before, client_address(request))
            messages.success(request, "Saved. What is older is deleted within ten minutes.")
            return redirect("upkeep:retention")
        shown = form.instance if form.is_valid() else Retention.current()
    context = {"form": form, "portions": retention.preview(shown), "is_try": request.method == "POST"}
    return render(request, "upkeep/retention.html", context)

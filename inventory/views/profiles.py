"""Profiles: start a run, see what was measured."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_POST

from accounts.core.asked_number import asked_number
from accounts.services import operator_required
from inventory import charts, services
from inventory.forms.profile import ProfileForm
from inventory.models import Device, LanguageModel, Profile
from inventory.views.adding import REJECTED, person, shown_job
from jobs.services import AlreadyRunning


@require_GET
def index(request: HttpRequest) -> HttpResponse:
    usable = Device.objects.usable()
    asked: list[Any] = [*request.GET.getlist("device")]
    initial = {
        "model": request.GET.get("model")
        or LanguageModel.objects.usable().values_list("pk", flat=True).first(),
        "devices": asked or [device.pk for device in usable],
    }
    return _page(request, ProfileForm(initial=initial))


@require_POST
@operator_required
def start(request: HttpRequest) -> HttpResponse:
    form = ProfileForm(request.POST)
    if not form.is_valid():
        return _page(request, form, REJECTED)
    data = form.cleaned_data
    try:
        services.start_profile(
            data["devices"],
            data["model"],
            person(request),
            thorough=data["thoroughness"] == "thorough",
            anyway=data.get("anyway", False),
        )
    except services.WouldDisturb as error:
        form.add_error("devices", str(error))
        return _page(request, form, REJECTED)
    except AlreadyRunning as error:
        messages.info(request, str(error))
    return redirect("inventory:profiles")


@require_POST
@operator_required
def reuse(request: HttpRequest, profile_id: int) -> HttpResponse:
    made = get_object_or_404(Profile.objects.current().select_related("device", "model"), pk=profile_id)
    device = get_object_or_404(Device, pk=asked_number(request.POST.get("device", "")))
    try:
        new = services.reuse_profile(made, device, person(request))
    except services.CannotReuse as error:
        messages.error(request, str(error))
        return redirect("inventory:profiles")
    messages.success(
        request, f"{device.name} uses the profile of {made.device.name} now. Time it itself whenever you can."
    )
    return redirect("inventory:profile", new.pk)


@require_GET
def detail(request: HttpRequest, profile_id: int) -> HttpResponse:
    profile = get_object_or_404(Profile.objects.select_related("device", "model"), pk=profile_id)
    versions = Profile.objects.filter(device=profile.device, model=profile.model).order_by("-version")
    context = {"profile": profile, "charts": charts.profile_charts(profile), "versions": versions}
    return render(request, "inventory/profile.html", context)


def _page(request: HttpRequest, form: ProfileForm, status: int = 200) -> HttpResponse:
    context = {
        "form": form,
        "profiles": Profile.objects.current().select_related("device", "model"),
        "offers": services.reuse_offers(),
        "job": shown_job("profiles"),
        "has_models": LanguageModel.objects.usable().exists(),
        "has_devices": Device.objects.usable().exists(),
    }
    return render(request, "inventory/profiles.html", context, status=status)

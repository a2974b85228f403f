"""Processes with our mark that no deployment knows."""

from __future__ import annotations

from asgiref.sync import async_to_sync
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.cache import patch_vary_headers
from django.views.decorators.http import require_GET, require_POST

from accounts.core.asked_number import asked_number
from accounts.services import operator_required
from inventory.models import Device
from inventory.remote import RemoteError
from serving.services import orphans
from serving.services.orphans import NotAnOrphan
from serving.views.deployments import person


@require_GET
@operator_required
def index(request: HttpRequest) -> HttpResponse:
    """Look at every device now; asked for by a person, since it takes seconds when one is silent."""
    found = async_to_sync(orphans.find)(orphans.reachable_devices(), orphans.known())
    is_fragment = "HX-Request" in request.headers
    answer = render(
        request, "serving/_orphans.html" if is_fragment else "serving/orphans.html", {"found": found}
    )
    patch_vary_headers(answer, ["HX-Request"])
    return answer


@require_POST
@operator_required
def stop(request: HttpRequest) -> HttpResponse:
    asked = asked_number(request.POST.get("device", ""))
    device = get_object_or_404(Device.objects.select_related("identity"), pk=asked)
    marker = request.POST.get("marker", "")
    try:
        orphans.check(async_to_sync(orphans.find)([device], orphans.known()), marker)
        async_to_sync(orphans.stop)(device, marker)
    except (NotAnOrphan, RemoteError) as error:
        messages.error(request, str(error))
        return redirect("serving:index")
    orphans.note_stopped(device, marker, person(request))
    messages.success(request, f"The process {marker} on {device} was stopped and its files removed.")
    return redirect("serving:index")

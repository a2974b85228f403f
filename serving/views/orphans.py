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
from jobs import services as jobs
from serving.services import adoption, orphans
from serving.services.adoption import CannotAdopt
from serving.services.orphans import NotAnOrphan, Search
from serving.views.deployments import person, to_running


@require_GET
@operator_required
def index(request: HttpRequest) -> HttpResponse:
    """Look at every device now; asked for by a person, since it takes seconds when one is silent."""
    found = look_everywhere()
    rows = adoption.offers(found)
    context = {
        "silent": found.silent,
        "ours": [row for row in rows if row[0].is_ours],
        "foreign": [row for row in rows if not row[0].is_ours],
    }
    is_fragment = "HX-Request" in request.headers
    answer = render(request, "serving/_orphans.html" if is_fragment else "serving/orphans.html", context)
    patch_vary_headers(answer, ["HX-Request"])
    return answer


def look_everywhere() -> Search:
    return async_to_sync(orphans.find)(orphans.reachable_devices(), orphans.known())


@require_POST
@operator_required
def adopt(request: HttpRequest) -> HttpResponse:
    """A process of another dashboard needs the word that this one is gone."""
    marker = request.POST.get("marker", "")
    found = look_everywhere()
    try:
        offer = adoption.offer(found, orphans.with_marker(found, marker))
        if offer.is_foreign and request.POST.get("is_gone") != "on":
            raise CannotAdopt("Another dashboard started it: confirm first that that one is gone.")
        adoption.adopt(offer, person(request))
    except jobs.AlreadyRunning as error:
        return to_running(request, error)
    except (CannotAdopt, NotAnOrphan) as error:
        messages.error(request, str(error))
        return redirect("serving:index")
    return redirect("serving:detail", offer.replica.deployment_id)


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

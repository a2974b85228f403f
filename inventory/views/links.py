"""The matrix of links."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_POST

from accounts.services import operator_required
from inventory import charts, services
from inventory.models import Device, Link
from inventory.views.adding import person, shown_job
from jobs.services import AlreadyRunning


@require_GET
def index(request: HttpRequest) -> HttpResponse:
    devices = list(Device.objects.filter(probed_at__isnull=False))
    links = list(Link.objects.select_related("source", "target"))
    rows, odd = charts.matrix(devices, [link for link in links if {link.source, link.target} <= set(devices)])
    context = {
        "devices": devices,
        "rows": rows,
        "odd": odd,
        "ways": charts.ways(links),
        "oldest": min((link.measured_at for link in links), default=None),
        "estimated": [link for link in links if link.method.startswith("estimated")],
        "outdated": Link.objects.outdated().exists(),
        "missing": len(devices) * (len(devices) - 1) - len(links),
        "job": shown_job("links"),
        "serving": services.serving_now(list(Device.objects.usable())),
        "idle": Device.objects.usable().exclude(pk__in=Device.objects.in_use()).count(),
    }
    return render(request, "inventory/links.html", context)


@require_POST
@operator_required
def measure(request: HttpRequest) -> HttpResponse:
    devices = Device.objects.usable()
    if "only_idle" in request.POST:
        devices = devices.exclude(pk__in=Device.objects.in_use())
    if len(devices) < 2:
        messages.error(
            request, "Links need two devices that were probed and have llama.cpp. Add another device first."
        )
        return redirect("inventory:links")
    try:
        services.start_links(list(devices), person(request), anyway="anyway" in request.POST)
    except services.WouldDisturb as error:
        messages.warning(request, str(error))
    except AlreadyRunning as error:
        messages.info(request, str(error))
    return redirect("inventory:links")

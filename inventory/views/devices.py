"""Devices: the table, one device, and what can be done with it."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from accounts.services import admin_required, operator_required
from inventory import charts, services
from inventory.core.hardware import clock_text
from inventory.core.quantities import bytes_text
from inventory.forms.device import HostKeyForm, MemoryForm, SettingsForm, WayForm
from inventory.models import RUNNING_STATES, Device, Link, ModelFile, Profile
from inventory.probe import lacking
from inventory.remote import RemoteError
from inventory.services.registration import CannotRegister
from inventory.views.adding import REJECTED, person, shown_job
from jobs.services import AlreadyRunning

# What runs hangs on a device under `processes`, put there by the app that runs it.
RUNNING = "processes__replica__deployment"
TONES = {
    Device.States.NEW: "calm",
    Device.States.ONLINE: "ok",
    Device.States.SUSPECT: "warn",
    Device.States.LOST: "danger",
    Device.States.KEY_CHANGED: "danger",
}


@require_GET
def index(request: HttpRequest) -> HttpResponse:
    devices = Device.objects.prefetch_related(RUNNING).select_related("reached_through")
    twins = services.twins_of(devices)
    rows = [_row(device) | {"twins": twins.get(device.pk, "")} for device in devices]
    return render(request, "inventory/devices.html", {"rows": rows})


@require_GET
def detail(request: HttpRequest, device_id: int) -> HttpResponse:
    device = get_object_or_404(Device.objects.prefetch_related(RUNNING), pk=device_id)
    return _page(request, device)


@require_POST
@operator_required
def probe(request: HttpRequest, device_id: int) -> HttpResponse:
    return probe_again(request, get_object_or_404(Device, pk=device_id))


def probe_again(request: HttpRequest, device: Device) -> HttpResponse:
    try:
        services.start_probe(device, person(request))
    except AlreadyRunning as error:
        messages.info(request, str(error))
    return redirect("inventory:device", device.pk)


@require_POST
@admin_required
def settings(request: HttpRequest, device_id: int) -> HttpResponse:
    device = get_object_or_404(Device, pk=device_id)
    form = SettingsForm(request.POST, device=device)
    if not form.is_valid():
        return _page(request, device, REJECTED, settings_form=form)
    changed = services.settle(device, form.values(), person(request))
    messages.success(request, _saved_text(changed))
    return redirect("inventory:device", device.pk)


@require_POST
@admin_required
def way(request: HttpRequest, device_id: int) -> HttpResponse:
    """Another host, port, user or identity, taken after the device has answered there with its own key."""
    device = get_object_or_404(Device, pk=device_id, connection=Device.Connections.SSH)
    form = WayForm(request.POST, device=device)
    if not form.is_valid():
        return _page(request, device, REJECTED, way_form=form)
    try:
        changed = services.move_device(device, form.cleaned_data, person(request))
    except (CannotRegister, RemoteError) as error:
        form.add_error("host", str(error))
        return _page(request, device, REJECTED, way_form=form)
    messages.success(request, _saved_text(changed))
    return redirect("inventory:device", device.pk)


def _saved_text(changed: set[str]) -> str:
    text = "Saved." if changed else "Nothing was changed."
    if changed & {"llama_folder", "model_roots"}:
        text += " Probe the device again so that the new places are read."
    if "address" in changed:
        text += " Its links were measured at another address: measure them again."
    return text


@require_POST
@admin_required
def memory(request: HttpRequest, device_id: int) -> HttpResponse:
    device = get_object_or_404(Device, pk=device_id)
    if "reset" in request.POST:
        services.use_probed_memory(device, person(request))
        messages.success(request, "The probed numbers hold again.")
        return redirect("inventory:device", device.pk)
    form = MemoryForm(request.POST, device=device)
    if not form.is_valid():
        return _page(request, device, REJECTED, memory_form=form)
    gpu_bytes, ram_bytes = form.sizes()
    services.override_memory(device, gpu_bytes, ram_bytes, form.cleaned_data["reason"], person(request))
    messages.success(request, "Plans use these numbers from now on.")
    return redirect("inventory:device", device.pk)


@require_POST
@operator_required
def maintenance(request: HttpRequest, device_id: int) -> HttpResponse:
    device = get_object_or_404(Device, pk=device_id)
    services.set_maintenance(device, request.POST.get("wanted") == "on", person(request))
    return redirect("inventory:device", device.pk)


@require_POST
@admin_required
def remove(request: HttpRequest, device_id: int) -> HttpResponse:
    device = get_object_or_404(Device, pk=device_id)
    try:
        services.remove_device(device, person(request))
    except CannotRegister as error:
        messages.error(request, str(error))
        return redirect("inventory:device", device_id)
    key = " Our key is still in its authorized_keys." if device.connection == Device.Connections.SSH else ""
    messages.success(request, f"{device.name} was removed.{key}")
    return redirect("inventory:devices")


@require_http_methods(["GET", "POST"])
@admin_required
def host_key(request: HttpRequest, device_id: int) -> HttpResponse:
    """Both fingerprints beside each other; only a reason and a click pin the new one."""
    device = get_object_or_404(Device, pk=device_id, connection=Device.Connections.SSH)
    try:
        shown = services.look_up(device.host, device.port, device.reached_through)
    except RemoteError as error:
        messages.error(request, str(error))
        return redirect("inventory:device", device.pk)
    form = HostKeyForm(request.POST or None, initial={"line": shown.line})
    if request.method == "POST" and request.POST.get("line") != shown.line:
        form = HostKeyForm(initial={"line": shown.line, "reason": request.POST.get("reason", "")})
        messages.error(request, "The host shows another key than on the page before. Compare again.")
    elif form.is_valid():
        services.confirm_host_key(device, shown.line, form.cleaned_data["reason"], person(request))
        return probe_again(request, device)
    context = {
        "device": device,
        "shown": shown,
        "pinned": services.read_host_key(device.host_key),
        "form": form,
        "command": services.print_command(shown, device.host, device.port),
    }
    return render(request, "inventory/host_key.html", context, status=REJECTED if form.errors else 200)


def _running(device: Device) -> list[Any]:
    return [process for process in device.processes.all() if process.state in RUNNING_STATES]


def _state(device: Device) -> tuple[str, str]:
    """Tone and words; what was online once is not shown as online when nobody has asked it lately."""
    if device.in_maintenance:
        return "calm", "In maintenance"
    if device.closed_reason:
        return "calm", f"{device.closed_reason[0].upper()}{device.closed_reason[1:]}"
    if device.state == Device.States.ONLINE and not device.was_seen_recently():
        return "warn", "Not asked lately"
    return TONES[Device.States(device.state)], str(device.get_state_display())


def _row(device: Device) -> dict[str, Any]:
    total = device.hardware.get("memory_total_bytes")
    gpu = device.gpu
    usable = device.gpu_usable_bytes
    tone, state = _state(device)
    pool_total = gpu["total_bytes"] if gpu else total
    return {
        "device": device,
        "tone": tone,
        "state": state,
        "percent": round(100 * usable / pool_total) if usable and pool_total else 0,
        "memory": f"{bytes_text(usable)} of {bytes_text(pool_total)}" if usable and pool_total else "",
        "pool": gpu["description"] if gpu else device.hardware.get("cpu_model", ""),
        "ram": device.ram_usable_bytes,
        "running": _running(device),
    }


def _page(request: HttpRequest, device: Device, status: int = 200, **forms: Any) -> HttpResponse:
    links = Link.objects.filter(source=device).select_related("target").order_by("target__name")
    profiles = Profile.objects.current().filter(device=device).select_related("model")
    context = {
        "device": device,
        "row": _row(device),
        "job": shown_job(device.subject),
        "links_out": links,
        "profiles": profiles,
        "files": ModelFile.objects.filter(device=device).select_related("model"),
        "effects": services.removal_effects(device),
        "removal_refusal": services.removal_refusal(device),
        "settings_form": SettingsForm(device=device),
        "way_form": WayForm(device=device),
        "memory_form": MemoryForm(device=device),
        "lacking_flags": lacking(device.llama) if device.llama else [],
        "clock_text": clock_text(device.hardware.get("clock_skew_seconds", 0.0)),
        "same_machine": services.same_machine_text(device),
        "charts": [chart for made in profiles[:1] for chart in charts.profile_charts(made)],
        **forms,
    }
    return render(request, "inventory/device.html", context, status=status)

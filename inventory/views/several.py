"""Adding several devices at once: every fingerprint is ticked by a person."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from accounts import vault
from accounts.services import admin_required
from inventory import services
from inventory.forms import SeveralForm
from inventory.remote import RemoteError
from inventory.services import NewDevice
from inventory.services.registration import CannotRegister
from inventory.views.adding import REJECTED, person

PENDING = "new_devices"


@require_http_methods(["GET", "POST"])
@admin_required
def add(request: HttpRequest) -> HttpResponse:
    request.session.pop(PENDING, None)
    form = SeveralForm(request.POST or None)
    if not form.is_valid():
        context = {"form": form, "identity": services.default_identity()}
        return render(request, "inventory/several.html", context, status=REJECTED if form.errors else 200)
    wanted = form.cleaned_data["lines"]
    keys = services.look_up_all([(new.host, new.port) for new in wanted])
    items = [_item(new, key) for new, key in zip(wanted, keys, strict=True)]
    password = form.cleaned_data["password"]
    request.session[PENDING] = {"items": items, "password": vault.encrypt(password) if password else ""}
    return redirect("inventory:devices_confirm")


@require_http_methods(["GET", "POST"])
@admin_required
def confirm(request: HttpRequest) -> HttpResponse:
    pending = request.session.get(PENDING)
    if pending is None:
        return redirect("inventory:devices_add")
    if request.method == "GET":
        return render(request, "inventory/several_confirm.html", {"items": pending["items"]})
    ticked = set(request.POST.getlist("device"))
    chosen = [item for item in pending["items"] if item["name"] in ticked and item["key"]]
    if not chosen:
        messages.error(request, "No fingerprint was ticked, so nothing was added.")
        return redirect("inventory:devices_confirm")
    del request.session[PENDING]
    password = vault.decrypt(pending["password"]) if pending["password"] else ""
    for item in chosen:
        _register(request, item, password)
    return redirect("inventory:devices")


def _register(request: HttpRequest, item: dict[str, Any], password: str) -> None:
    new = NewDevice(item["name"], item["host"], item["port"], item["username"])
    try:
        device = services.register_device(new, item["key"], person(request), password=password)
    except (RemoteError, CannotRegister) as error:
        messages.error(request, f"{new.name} was not added: {error}")
        return
    services.start_probe(device, person(request))
    messages.success(request, f"{new.name} was added and is being probed.")


def _item(new: NewDevice, key: services.HostKey | RemoteError) -> dict[str, Any]:
    shown = {"key": "", "fingerprint": "", "algorithm": "", "problem": ""}
    if isinstance(key, RemoteError):
        shown["problem"] = str(key)
    else:
        shown |= {"key": key.line, "fingerprint": key.fingerprint, "algorithm": key.algorithm}
    return asdict(new) | shown

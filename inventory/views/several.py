"""Adding several devices at once: every fingerprint is ticked by a person."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from accounts.services import admin_required
from inventory import services
from inventory.forms.adding import SeveralForm
from inventory.remote import RemoteError
from inventory.services import NewDevice
from inventory.services.registration import CannotRegister
from inventory.views import pending
from inventory.views.adding import REJECTED, person

LOOK_AGAIN = "These fingerprints are no longer open for confirmation. Look the hosts up again."


@require_http_methods(["GET", "POST"])
@admin_required
def add(request: HttpRequest) -> HttpResponse:
    form = SeveralForm(request.POST or None)
    if not form.is_valid():
        return _page(request, form, REJECTED if form.errors else 200)
    wanted = form.cleaned_data["lines"]
    keys = services.look_up_all([(new.host, new.port) for new in wanted])
    items = [_item(new, key) for new, key in zip(wanted, keys, strict=True)]
    typed = {"lines": form.data["lines"]}
    word = pending.keep(request, typed, items, form.cleaned_data["password"])
    return redirect("inventory:devices_confirm", word)


@require_http_methods(["GET", "POST"])
@admin_required
def confirm(request: HttpRequest, word: str) -> HttpResponse:
    """Adds the ticked ones of the hosts whose fingerprints this page showed."""
    items = pending.shown(request, word)
    if items is None:
        messages.warning(request, LOOK_AGAIN)
        return _page(request, SeveralForm(initial=pending.typed(request, word)))
    if request.method == "GET":
        return render(request, "inventory/several_confirm.html", {"items": items})
    ticked = set(request.POST.getlist("device"))
    chosen = [item for item in items if item["name"] in ticked and item["key"]]
    if not chosen:
        messages.error(request, "No fingerprint was ticked, so nothing was added.")
        return redirect("inventory:devices_confirm", word)
    password = pending.take_password(request, word)
    for item in chosen:
        _register(request, item, password)
    return redirect("inventory:devices")


def _page(request: HttpRequest, form: SeveralForm, status: int = 200) -> HttpResponse:
    context = {"form": form, "identity": services.default_identity()}
    return render(request, "inventory/several.html", context, status=status)


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
    shown = {"key": "", "fingerprint": "", "command": "", "problem": ""}
    if isinstance(key, RemoteError):
        shown["problem"] = str(key)
    else:
        shown |= {"key": key.line, "fingerprint": key.fingerprint}
        shown["command"] = services.print_command(key, new.host, new.port)
    where = f"{new.username}@{services.place_text(new.host, new.port)}"
    return asdict(new) | {"where": where} | shown

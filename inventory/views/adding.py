"""Adding a device: what to reach, whose key it shows, then the log-in."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from accounts.models import User
from accounts.services import admin_required
from inventory import services
from inventory.forms.adding import AddDeviceForm
from inventory.models import Device, SshIdentity
from inventory.remote import RemoteError
from inventory.services.registration import CannotRegister
from inventory.views import pending
from jobs.models import Job, State

REJECTED = 422
LOOK_AGAIN = (
    "This fingerprint is no longer open for confirmation, and nothing was added. Look the host up again."
)


def person(request: HttpRequest) -> User:
    assert isinstance(request.user, User), "the middleware lets nobody else in"
    return request.user


@require_http_methods(["GET", "POST"])
@admin_required
def add(request: HttpRequest) -> HttpResponse:
    if request.method == "GET":
        return _page(request, AddDeviceForm(initial=_suggested()))
    form = AddDeviceForm(request.POST)
    if not form.is_valid():
        return _page(request, form, REJECTED)
    if form.cleaned_data["connection"] == Device.Connections.LOCAL:
        return _add_local(request, form)
    new = form.new_device()
    try:
        key = services.look_up(new.host, new.port, new.reached_through)
    except RemoteError as error:
        form.add_error("host", str(error))
        return _page(request, form, REJECTED)
    word = pending.keep(request, _typed(form), key.line, form.cleaned_data["password"])
    return redirect("inventory:device_confirm", word)


@require_http_methods(["GET", "POST"])
@admin_required
def confirm(request: HttpRequest, word: str) -> HttpResponse:
    """Shows one fingerprint; a click on it says that it is the right machine, and adds the host that showed it."""
    typed, key_line = pending.typed(request, word), pending.shown(request, word)
    if typed is None or key_line is None:
        messages.warning(request, LOOK_AGAIN)
        return _page(request, AddDeviceForm(initial=_suggested() if typed is None else typed))
    form = AddDeviceForm(typed)
    if not form.is_valid():
        return _page(request, form, REJECTED)
    if request.method == "GET":
        key = services.read_host_key(key_line)
        new = form.new_device()
        context = {"new": new, "key": key, "command": services.print_command(key, new.host, new.port)}
        return render(request, "inventory/confirm.html", context)
    return _register(request, form, key_line, pending.take_password(request, word))


def _register(request: HttpRequest, form: AddDeviceForm, key_line: str, password: str) -> HttpResponse:
    identity = form.cleaned_data["identity"]
    try:
        device = services.register_device(
            form.new_device(), key_line, person(request), identity=identity, password=password
        )
    except (RemoteError, CannotRegister) as error:
        form.add_error(None, f"{error} Nothing was saved.")
        return _page(request, form, REJECTED)
    services.start_probe(device, person(request))
    return redirect("inventory:device", device.pk)


def _add_local(request: HttpRequest, form: AddDeviceForm) -> HttpResponse:
    data = form.cleaned_data
    try:
        device = services.register_local(
            data["name"], person(request), address=data["address"] or "", llama_folder=data["llama_folder"]
        )
    except CannotRegister as error:
        form.add_error("name", str(error))
        return _page(request, form, REJECTED)
    services.settle(device, {"model_roots": data["model_roots"]}, person(request))
    services.start_probe(device, person(request))
    return redirect("inventory:device", device.pk)


def _typed(form: AddDeviceForm) -> dict[str, Any]:
    return {name: form.data[name] for name in form.fields if name in form.data and name != "password"}


def _suggested() -> dict[str, Any]:
    """A second machine of a lab usually has the user of the first."""
    last = Device.objects.filter(connection=Device.Connections.SSH).order_by("-created_at").first()
    return {"username": last.username, "port": last.port} if last else {}


def shown_job(subject: str) -> Job | None:
    """The latest job about something while it runs, and afterwards when it did not succeed."""
    job = Job.objects.about(subject).select_related("started_by").first()
    return None if job is None or job.state == State.SUCCEEDED else job


def _page(request: HttpRequest, form: AddDeviceForm, status: int = 200) -> HttpResponse:
    context = {
        "form": form,
        "identity": services.default_identity(),
        "identities": SshIdentity.objects.count(),
    }
    return render(request, "inventory/add.html", context, status=status)

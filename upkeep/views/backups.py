"""Backups: the list, a new one, and how it gets out of here."""

from __future__ import annotations

from django.contrib import messages
from django.http import FileResponse, Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST

from accounts.services import admin_required, audit, client_address
from jobs import services as jobs
from serving.views.deployments import person
from upkeep.forms import ScheduleForm, SealForm
from upkeep.models import BackupSchedule
from upkeep.runner import archive, copies
from upkeep.services import backups


@require_http_methods(["GET", "POST"])
@admin_required
def index(request: HttpRequest) -> HttpResponse:
    form = ScheduleForm(request.POST or None, instance=BackupSchedule.current())
    if request.method == "POST" and form.is_valid():
        backups.change(form.instance, person(request), client_address(request))
        messages.success(request, "The schedule is saved.")
        return redirect("upkeep:backups")
    return page(request, form)


def page(request: HttpRequest, form: ScheduleForm, status: int = 200, **extra: object) -> HttpResponse:
    context = {
        "form": form,
        "copies": copies.copies(),
        "folder": copies.folder(),
        "schedule": BackupSchedule.current(),
        "job": jobs.active_for(backups.SUBJECT),
        "seal_form": SealForm(),
        **extra,
    }
    return render(request, "upkeep/backups.html", context, status=status)


@require_POST
@admin_required
def start(request: HttpRequest) -> HttpResponse:
    try:
        job = backups.start(
            person(request),
            with_history=request.POST.get("with_history") == "on",
            address=client_address(request),
        )
    except jobs.AlreadyRunning as error:
        messages.info(request, str(error))
        job = error.job
    return redirect("jobs:detail", job.pk)


@require_POST
@admin_required
def download(request: HttpRequest, name: str) -> HttpResponseBase:
    """The file as it lies here: without the keys."""
    path = copies.path_of(name)
    if path is None:
        raise Http404("There is no such backup.")
    audit(person(request), "backup.downloaded", name, {"sealed": False}, client_address(request))
    return FileResponse(path.open("rb"), as_attachment=True, filename=f"e2llm-{name}")


@sensitive_post_parameters()
@require_POST
@admin_required
def sealed(request: HttpRequest, name: str) -> HttpResponseBase:
    """The backup and the key files, unreadable without the passphrase that was typed."""
    seal_form = SealForm(request.POST)
    if not seal_form.is_valid():
        form = ScheduleForm(instance=BackupSchedule.current())
        return page(request, form, 400, seal_form=seal_form, sealing=name)
    file = backups.sealed(name, seal_form.cleaned_data["passphrase"])
    if file is None:
        raise Http404("There is no such backup.")
    audit(person(request), "backup.downloaded", name, {"sealed": True}, client_address(request))
    return FileResponse(
        file, as_attachment=True, filename=f"e2llm-{name.removesuffix('.tar.gz')}{archive.SEALED_SUFFIX}"
    )


@require_POST
@admin_required
def delete(request: HttpRequest, name: str) -> HttpResponse:
    if not backups.delete(name, person(request), client_address(request)):
        raise Http404("There is no such backup.")
    messages.success(request, f"{name} is deleted.")
    return redirect("upkeep:backups")

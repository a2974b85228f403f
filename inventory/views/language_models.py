"""Models: found files, what their headers say, what fits where."""

from __future__ import annotations

from collections import Counter

from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_POST

from accounts.core.asked_number import asked_number
from accounts.services import audit, operator_required
from inventory import charts, services
from inventory.core.model_fit import Setting, memory_of
from inventory.core.model_shape import ModelShape
from inventory.library import library_folder
from inventory.models import Device, LanguageModel
from inventory.views.adding import person, shown_job
from jobs.models import Job, State
from jobs.services import AlreadyRunning

CONTEXTS = (2048, 8192, 32_768, 131_072)
SLOT_COUNTS = (1, 2, 4, 8, 16)
USUAL_CONTEXT = 8192
MOST_SLOTS = 256
LONGEST_CONTEXT = 10_000_000


@require_GET
def index(request: HttpRequest) -> HttpResponse:
    models = LanguageModel.objects.prefetch_related("files__device")
    last = Job.objects.about("models").filter(state=State.SUCCEEDED).first()
    context = {
        "rows": [
            {"model": model, "shape": ModelShape.from_dict(model.shape), "places": _places(model)}
            for model in models
        ],
        "library": library_folder(),
        "job": shown_job("models"),
        "problems": [line.text for line in last.lines.all()] if last else [],
    }
    return render(request, "inventory/models.html", context)


def _places(model: LanguageModel) -> str:
    """Where copies lie: `box-1 (2 files), library`."""
    counts = Counter(file.device.name if file.device else "library" for file in model.files.all())
    return ", ".join(f"{name} ({count} files)" if count > 1 else name for name, count in counts.items())


@require_GET
def detail(request: HttpRequest, model_id: int) -> HttpResponse:
    model = get_object_or_404(LanguageModel, pk=model_id)
    shape = ModelShape.from_dict(model.shape)
    tokens = asked_number(request.GET.get("context", ""), LONGEST_CONTEXT) or USUAL_CONTEXT
    slots = asked_number(request.GET.get("slots", ""), MOST_SLOTS) or 1
    setting = Setting(tokens, slots, full_cache=shape.can_hand_over)
    context = {
        "model": model,
        "shape": shape,
        "blocks": charts.block_rows(shape, setting),
        "memory": memory_of(shape, setting),
        "narrow": memory_of(shape, Setting(tokens, slots)),
        "slots": slots,
        "slot_counts": SLOT_COUNTS,
        "files": model.files.select_related("device"),
        "fits": charts.model_fits(model, list(Device.objects.all()), setting),
        "context_tokens": tokens,
        "contexts": CONTEXTS,
        "targets": Device.objects.filter(probed_at__isnull=False).exclude(model_files__model=model),
        "jobs": _copy_jobs(model),
        "profiles": model.profiles.current().select_related("device"),
    }
    return render(request, "inventory/model.html", context)


def _copy_jobs(model: LanguageModel) -> list[Job]:
    """Copies of this model under way, and the latest that failed."""
    jobs = Job.objects.filter(kind="inventory.copy_model", params__model=model.pk).select_related(
        "started_by"
    )
    latest: dict[str, Job] = {}
    for job in jobs[:50]:
        latest.setdefault(job.subject, job)
    return [job for job in latest.values() if job.state != State.SUCCEEDED]


@require_POST
@operator_required
def copy(request: HttpRequest, model_id: int) -> HttpResponse:
    model = get_object_or_404(LanguageModel, pk=model_id)
    asked = asked_number(request.POST.get("device", ""))
    device = get_object_or_404(Device, pk=asked, probed_at__isnull=False)
    try:
        services.start_copy(model, device, person(request))
    except AlreadyRunning as error:
        messages.info(request, str(error))
    return redirect("inventory:model", model.pk)


@require_POST
@operator_required
def remove(request: HttpRequest, model_id: int) -> HttpResponse:
    """Forget a model of which no copy is left, with its profiles; plans keep what they were made from."""
    model = get_object_or_404(LanguageModel, pk=model_id)
    if model.files.exists():
        messages.error(request, f"{model.name} has copies left. Remove the files and look for models again.")
        return redirect("inventory:model", model_id)
    if model.deployments.exists():
        messages.error(
            request, f"{model.name} belongs to deployments, whose history would be lost: it stays."
        )
        return redirect("inventory:model", model_id)
    with transaction.atomic():
        model.delete()
        audit(person(request), "model.removed", model.name)
    messages.success(request, f"{model.name} is removed.")
    return redirect("inventory:models")


@require_POST
@operator_required
def scan(request: HttpRequest) -> HttpResponse:
    devices = Device.objects.filter(in_maintenance=False, probed_at__isnull=False)
    try:
        services.start_scan(list(devices), person(request))
    except AlreadyRunning as error:
        messages.info(request, str(error))
    return redirect("inventory:models")

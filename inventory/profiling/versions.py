"""Versions of profiles: what one depends on, when it is stale, and where a new one may come from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import transaction
from django.db.models import Max
from django.utils import timezone

from inventory.core.hardware import spare_threads
from inventory.core.model_shape import ModelShape
from inventory.core.profile import Timing, fit, scaled
from inventory.models import Device, LanguageModel, Profile


def save(device: Device, model: LanguageModel, timings: list[Timing]) -> Profile:
    """Fit and store a new version; the one before stays as history."""
    fitted = fit(timings, ModelShape.from_dict(model.shape).head_blocks)
    made_under = conditions(device) | {"noisy": list(fitted.noisy)} | _memory_before(device, model)
    samples = [timing.to_dict() for timing in timings]
    return _store(device, model, fitted.tables, samples, fitted.residual, made_under)


def _memory_before(device: Device, model: LanguageModel) -> dict[str, Any]:
    """What a deployment has shown of the device's memory, which new timings say nothing about."""
    before = Profile.objects.current().filter(device=device, model=model).first()
    return {"memory": before.made_under["memory"]} if before and "memory" in before.made_under else {}


def recalibrate(
    made: Profile, factors: dict[str, float], source: dict[str, Any], memory: dict[str, Any] | None = None
) -> Profile:
    """A new version with the seconds of each phase multiplied; it keeps the timings, `source` says why it differs.

    `memory` is what the device took beside what was predicted; without it the version before counts on.
    """
    made_under = made.made_under | {"recalibrated": source | {"from_version": made.version}}
    if factors:
        made_under["noisy"] = []
    if memory is not None:
        made_under |= {"memory": memory | {"deployment": source["deployment"]}}
    new = _store(
        made.device, made.model, scaled(made.tables, factors), made.samples, made.residual, made_under
    )
    new.stale_reason = made.stale_reason
    new.save(update_fields=["stale_reason"])
    return new


def conditions(device: Device) -> dict[str, Any]:
    """What a profile depends on; when one of these changes it is stale."""
    return {
        "build": device.llama.get("version", ""),
        "sha256": device.llama.get("sha256", ""),
        "driver": device.hardware.get("driver", ""),
        "on_battery": device.hardware.get("on_battery"),
        "threads": spare_threads(device.hardware),
        "main_device": device.main_pool_device,
    }


def stale_reason(device: Device, made: Profile) -> str:
    """Why a profile no longer holds on its device as it is now; empty while it does."""
    words = {
        "sha256": "another llama.cpp build",
        "driver": "another driver",
        "on_battery": "another power state",
        "threads": "another number of threads",
        "main_device": "another GPU",
    }
    now = conditions(device)
    changed = [
        text for key, text in words.items() if key in made.made_under and made.made_under[key] != now[key]
    ]
    return f"since it was made: {', '.join(changed)}" if changed else ""


def mark_stale(device: Device) -> None:
    """Say of every current profile of the device whether and why it no longer holds."""
    for made in Profile.objects.current().filter(device=device):
        reason = stale_reason(device, made)
        if reason != made.stale_reason:
            Profile.objects.filter(pk=made.pk).update(stale_reason=reason)


@dataclass(frozen=True)
class Offer:
    """A device that could use the profile of another of its kind instead of being timed."""

    profile: Profile
    device: Device


def offers(profiles: Sequence[Profile], devices: Iterable[Device]) -> list[Offer]:
    """For each device and model without a profile one of the same kind of device, of those that hold."""
    known = {(made.device_id, made.model_id) for made in profiles}
    found: dict[tuple[int, int], Offer] = {}
    for made in profiles:
        for device in devices:
            place = (device.pk, made.model_id)
            holds = not made.stale_reason and not made.noise_text
            if place not in known and holds and is_same_kind(made.device, device):
                found.setdefault(place, Offer(made, device))
    return list(found.values())


def is_same_kind(one: Device, other: Device) -> bool:
    """Equal processors, GPUs, llama.cpp files, drivers and power: what was timed on one should hold on the other."""
    return _kind(one) == _kind(other)


def reuse(made: Profile, device: Device) -> Profile:
    """The timings of another device of the same kind as a profile of this one, which says where they come from."""
    assert is_same_kind(made.device, device), "only what was offered is reused"
    made_under = {
        key: value for key, value in made.made_under.items() if key not in ("memory", "recalibrated")
    }
    source = made.made_under.get("measured_on", made.device.name)
    return _store(
        device, made.model, made.tables, made.samples, made.residual, made_under | {"measured_on": source}
    )


def _kind(device: Device) -> tuple[Any, ...]:
    gpu = device.gpu
    card = (gpu["description"], gpu["total_bytes"]) if gpu else None
    return (device.hardware["cpu_model"], device.hardware["cores"], card, conditions(device))


@transaction.atomic
def _store(
    device: Device,
    model: LanguageModel,
    tables: dict[str, Any],
    samples: list[dict[str, Any]],
    residual: float,
    made_under: dict[str, Any],
) -> Profile:
    earlier = Profile.objects.filter(device=device, model=model)
    version = (earlier.aggregate(last=Max("version"))["last"] or 0) + 1
    earlier.filter(superseded=False).update(superseded=True)
    return Profile.objects.create(
        device=device,
        model=model,
        version=version,
        tables=tables,
        samples=samples,
        residual=residual,
        made_under=made_under,
        measured_at=timezone.now(),
    )

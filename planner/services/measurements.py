"""Latencies and links of a cluster file, taken into the inventory for devices that are registered here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from django.db import transaction
from django.utils import timezone

from inventory.models import Device, LanguageModel, Link, Profile
from planner.core.errors import BadDocument
from planner.core.problem import Problem

SOURCE = "cluster file"


@dataclass
class Imported:
    """What was taken, and what was left with the reason."""

    taken: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


def import_measurements(cluster: dict[str, Any]) -> Imported:
    """Adds what the inventory lacks and replaces nothing; BadDocument when the model is not known here."""
    problem = Problem.from_dict(cluster)
    model = LanguageModel.objects.filter(name=problem.model.name).first()
    if model is None or len(model.shape["blocks"]) != problem.model.blocks:
        raise BadDocument(
            [f"model.name: no model “{problem.model.name}” with {problem.model.blocks} blocks is known here"]
        )
    names = [device.name for device in problem.devices]
    devices = {device.name: device for device in Device.objects.filter(name__in=names)}
    report = Imported()
    with transaction.atomic():
        for entry in cluster["devices"]:
            take_profile(entry, devices.get(entry["name"]), model, report)
        for pair in cluster["links"].get("pairs", []):
            take_link(pair, devices, report)
    return report


def take_profile(
    entry: dict[str, Any], device: Device | None, model: LanguageModel, report: Imported
) -> None:
    name = entry["name"]
    if device is None:
        report.left.append(f"{name}: no device of this name; add it under this name first.")
    elif Profile.objects.current().filter(device=device, model=model).exists():
        report.left.append(f"{name}: it has a profile of {model} already, which stays.")
    else:
        version = Profile.objects.filter(device=device, model=model).count() + 1
        Profile.objects.create(
            device=device,
            model=model,
            version=version,
            tables={"decode": entry["decode"], "prefill": entry["prefill"]},
            residual=0.0,
            made_under={"source": SOURCE},
            stale_reason="read from a cluster file, not measured here",
            measured_at=timezone.now(),
        )
        report.taken.append(f"{name}: profile of {model}")


def take_link(pair: dict[str, Any], devices: dict[str, Device], report: Imported) -> None:
    ends = [devices.get(pair["a"]), devices.get(pair["b"])]
    label = f"link {pair['a']} – {pair['b']}"
    for source, target in (ends, ends[::-1]):
        if source is None or target is None:
            report.left.append(f"{label}: one of the devices is not registered.")
            return
        _, is_new = Link.objects.get_or_create(
            source=source,
            target=target,
            defaults={
                "bytes_per_second": pair["bytes_per_second"],
                "latency_seconds": 2 * pair["latency_seconds"],  # a row holds the round trip
                "method": SOURCE,
                "measured_at": timezone.now(),
            },
        )
        (report.taken if is_new else report.left).append(
            f"{label}" if is_new else f"{label}: it was measured already."
        )

"""Changes to a device that is registered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from django.db import transaction
from django.db.models import Model, Q
from django.db.models.deletion import Collector

from accounts.models import User
from accounts.services import audit
from inventory import profiling
from inventory.core.hardware import usable_memory
from inventory.core.quantities import bytes_text, counted
from inventory.models import Device, Link, ModelFile
from inventory.remote import host_key as read_host_key
from inventory.services.registration import CannotRegister
from inventory.services.work import serving_now


def register_local(name: str, user: User | None, *, address: str = "", llama_folder: str = "") -> Device:
    """The machine that the dashboard runs on, as a device without SSH."""
    if Device.objects.filter(name=name).exists():
        raise CannotRegister(f"There is already a device called {name!r}. Choose another name.")
    known = Device.objects.filter(connection=Device.Connections.LOCAL).first()
    if known is not None:
        raise CannotRegister(f"This machine is already {known.name}.")
    device = Device.objects.create(
        name=name, connection=Device.Connections.LOCAL, address=address or None, llama_folder=llama_folder
    )
    audit(user, "device.added", name, {"host": "this machine"})
    return device


def same_machine_text(device: Device) -> str:
    """Which other devices are the machine that this one is, with what to do; empty when there are none."""
    if not device.boot_id:
        return ""
    twins = list(Device.objects.filter(hardware__boot_id=device.boot_id).exclude(pk=device.pk))
    if not twins:
        return ""
    has_same_key = any(twin.host_key and twin.host_key == device.host_key for twin in twins)
    sign = "the same boot id and host key" if has_same_key else "the same boot id"
    names = " and ".join(twin.name for twin in twins)
    return (
        f"This is already {names}: {sign}. Plans count the memory of one machine once, or as it was set by hand. "
        "Remove one of them unless you want the machine to stand for several."
    )


def twins_of(devices: Iterable[Device]) -> dict[int, str]:
    """By device id the names of the others that are the same machine."""
    by_machine: dict[str, list[Device]] = {}
    for device in devices:
        if device.boot_id:
            by_machine.setdefault(device.boot_id, []).append(device)
    return {
        one.pk: ", ".join(other.name for other in same if other != one)
        for same in by_machine.values()
        if len(same) > 1
        for one in same
    }


def confirm_host_key(device: Device, line: str, reason: str, user: User | None) -> None:
    """Pin another key after a person compared fingerprints and said why it changed."""
    old = read_host_key(device.host_key).fingerprint if device.host_key else ""
    new = read_host_key(line)
    device.host_key, device.state, device.state_reason = new.line, Device.States.SUSPECT, ""
    device.save(update_fields=["host_key", "state", "state_reason"])
    audit(
        user, "device.host_key_changed", device.name, {"old": old, "new": new.fingerprint, "reason": reason}
    )


def set_maintenance(device: Device, wanted: bool, user: User | None) -> None:
    """In maintenance a device is left out of plans and not watched; what runs on it goes on."""
    device.in_maintenance = wanted
    device.save(update_fields=["in_maintenance"])
    audit(user, "device.maintenance_on" if wanted else "device.maintenance_off", device.name)


def override_memory(device: Device, gpu_bytes: int, ram_bytes: int, reason: str, user: User | None) -> None:
    """Use these sizes instead of the probed ones."""
    before = _memory_text(device)
    device.gpu_usable_bytes, device.ram_usable_bytes = gpu_bytes, ram_bytes
    device.memory_override_reason = reason
    device.save(update_fields=["gpu_usable_bytes", "ram_usable_bytes", "memory_override_reason"])
    detail = {"before": before, "after": _memory_text(device), "reason": reason}
    audit(user, "device.memory_overridden", device.name, detail)


def use_probed_memory(device: Device, user: User | None) -> None:
    """Drop what was set by hand."""
    usable = usable_memory(device.hardware, device.chosen_gpu)
    device.gpu_usable_bytes, device.ram_usable_bytes = usable.gpu_bytes, usable.ram_bytes
    device.memory_override_reason = ""
    device.save(update_fields=["gpu_usable_bytes", "ram_usable_bytes", "memory_override_reason"])
    audit(user, "device.memory_probed", device.name)


def settle(device: Device, values: dict[str, Any], user: User | None) -> set[str]:
    """Save what an admin set on the device's form; returns the names of what is now different."""
    changed = {key: value for key, value in values.items() if getattr(device, key) != value}
    for key, value in changed.items():
        setattr(device, key, value)
    device.save(update_fields=list(changed))
    if "chosen_gpu" in changed:
        _follow_gpu(device)
    if "address" in changed:
        _outdate_links(device)
    if changed:
        audit(user, "device.changed", device.name, {key: _noted(value) for key, value in changed.items()})
    return set(changed)


def _outdate_links(device: Device) -> None:
    """Another address may be another network."""
    fresh = Link.objects.exclude(pk__in=Link.objects.outdated())
    for link in fresh.filter(Q(source=device) | Q(target=device)):
        link.outdate()


def _follow_gpu(device: Device) -> None:
    """Another GPU has another memory and other times."""
    if not device.memory_override_reason:
        usable = usable_memory(device.hardware, device.chosen_gpu)
        device.gpu_usable_bytes, device.ram_usable_bytes = usable.gpu_bytes, usable.ram_bytes
        device.hardware["usable_text"] = usable.text
        device.save(update_fields=["gpu_usable_bytes", "ram_usable_bytes", "hardware"])
    profiling.mark_stale(device)


def removal_effects(device: Device) -> list[str]:
    """What is forgotten with a device, in words; on the machine itself everything stays."""
    collector = Collector(using="default")
    collector.collect([device])
    counts: Counter[type[Model]] = Counter()
    for model, rows in collector.data.items():
        counts[model] += len(rows)
    for query in collector.fast_deletes:
        counts[query.model] += query.count()
    return [
        _counted(model, count)
        for model, count in counts.items()
        if count and model is not Device and not model._meta.auto_created  # the other side of those stays
    ]


def removal_refusal(device: Device) -> str:
    """Why a device cannot be removed now, with the remedy; empty when it can."""
    serving = serving_now([device])
    if serving:
        return f"{serving} Stop that first, then remove the device."
    behind = [str(other) for other in device.reached_from.all()]
    if behind:
        is_one = len(behind) == 1
        verb, them = ("is", "that") if is_one else ("are", "those")
        return f"{', '.join(behind)} {verb} reached through {device.name}. Remove {them} first."
    return ""


@transaction.atomic
def remove_device(device: Device, user: User | None) -> None:
    refusal = removal_refusal(device)
    if refusal:
        raise CannotRegister(refusal)
    audit(user, "device.removed", device.name, {"host": device.host, "effects": removal_effects(device)})
    device.delete()


def _memory_text(device: Device) -> str:
    main, ram = device.gpu_usable_bytes, device.ram_usable_bytes
    text = "unknown" if main is None else bytes_text(main)
    return f"{text} and {bytes_text(ram)} of RAM" if ram else text


def _noted(value: Any) -> Any:
    """A value as the audit log keeps it."""
    return [str(part)[:200] for part in value] if isinstance(value, list) else str(value or "")[:200]


def _counted(model: type[Model], count: int) -> str:
    if model is ModelFile:
        return f"the entries of {counted(count, 'model file')}, which stay on the machine"
    meta = model._meta
    return counted(count, str(meta.verbose_name), str(meta.verbose_name_plural))

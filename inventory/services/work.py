"""Starting the long work of the inventory as jobs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from accounts.models import User
from inventory import runner
from inventory.models import RUNNING_STATES, Device, LanguageModel
from jobs import services as jobs
from jobs.models import Job


class WouldDisturb(Exception):
    """Some of the devices serve now; the text names them and what they serve."""


def serving_now(devices: Sequence[Device]) -> str:
    """Which of the devices serve which deployment, in a sentence; empty when none does."""
    busy = Device.objects.in_use().filter(pk__in=[device.pk for device in devices])
    names: dict[str, list[str]] = defaultdict(list)
    for device in busy.prefetch_related("processes__replica__deployment"):
        running = [one for one in device.processes.all() if one.state in RUNNING_STATES]
        for deployment in dict.fromkeys(str(one.replica.deployment) for one in running):
            names[deployment].append(device.name)
    return " ".join(
        f"{', '.join(found)} {'serves' if len(found) == 1 else 'serve'} {deployment} now."
        for deployment, found in names.items()
    )


def refuse_to_disturb(devices: Sequence[Device]) -> None:
    text = serving_now(devices)
    if text:
        raise WouldDisturb(
            f"{text} Measuring there makes its answers slower and the measurement wrong. "
            "Leave these devices out, stop the deployment first, or say that you want it anyway."
        )


def start_probe(device: Device, user: User | None) -> Job:
    params = {"device": device.pk}
    return jobs.start(
        "inventory.probe_device", params, user, label=f"Probe {device.name}", subject=device.subject
    )


def start_links(devices: Sequence[Device], user: User | None, *, anyway: bool = False) -> Job:
    """WouldDisturb while a device serves, unless the person wants it anyway."""
    if not anyway:
        refuse_to_disturb(devices)
    params = {"devices": [device.pk for device in devices]}
    label = f"Measure the links between {len(devices)} devices"
    return jobs.start("inventory.measure_links", params, user, label=label, subject="links")


def start_scan(devices: Sequence[Device], user: User | None) -> Job:
    params = {"devices": [device.pk for device in devices]}
    return jobs.start("inventory.scan_models", params, user, label="Look for models", subject="models")


def start_copy(model: LanguageModel, device: Device, user: User | None) -> Job:
    params = {"model": model.pk, "device": device.pk}
    label = f"Copy {model.name} to {device.name}"[:200]
    return jobs.start("inventory.copy_model", params, user, label=label, subject=f"copy:{device.pk}")


def start_profile(
    devices: Sequence[Device],
    model: LanguageModel,
    user: User | None,
    *,
    thorough: bool,
    anyway: bool = False,
) -> Job:
    """WouldDisturb while a device serves, unless the person wants it anyway."""
    if not anyway:
        refuse_to_disturb(devices)
    params = {"devices": [device.pk for device in devices], "model": model.pk, "thorough": thorough}
    names = ", ".join(device.name for device in devices)
    return jobs.start(
        "inventory.profile_devices",
        params,
        user,
        label=f"Profile {model.name} on {names}"[:200],
        subject="profiles",
    )


def heartbeat() -> None:
    """Watch all devices; one that was restarted or unplugged is probed again, since its memory and speed may differ."""
    for device in runner.heartbeat():
        try:
            start_probe(device, None)
        except jobs.AlreadyRunning:
            continue

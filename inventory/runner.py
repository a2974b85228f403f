"""The long work of the inventory, each as a job and as a plain call from another job."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.utils import timezone

from inventory import library, links, profiling
from inventory.core.hardware import clock_text, usable_memory
from inventory.core.parsers import on_battery as on_battery_of
from inventory.models import Device, LanguageModel
from inventory.probe import Probed, missing, probe
from inventory.remote import Connection, HostKeyChanged, RemoteError, connect, kept
from inventory.remote.kept import Question
from jobs import runner as jobs
from jobs.core.errors import JobFailed
from jobs.models import Job
from jobs.progress import Progress

log = logging.getLogger(__name__)

BEAT_SECONDS = 8.0
SUSPECT_AFTER, LOST_AFTER = timedelta(seconds=25), timedelta(seconds=60)
SKEW_WARNING_SECONDS = 30.0
BEAT_PROGRAM = r"""
cat /proc/sys/kernel/random/boot_id 2>/dev/null || sysctl -n kern.bootsessionuuid
for d in /sys/class/power_supply/*; do
  [ -r "$d/online" ] && echo "$(basename "$d") $(cat "$d/online")"
done
command -v pmset >/dev/null 2>&1 && pmset -g batt | head -n 1
exit 0
"""


def probe_job(job_id: int) -> None:
    _execute(job_id, lambda params, progress: probe_device(_device(params), progress))


def links_job(job_id: int) -> None:
    _execute(job_id, lambda params, progress: links.measure_links(_devices(params), progress))


def scan_job(job_id: int) -> None:
    _execute(job_id, lambda params, progress: library.scan(_devices(params), progress))


def copy_job(job_id: int) -> None:
    _execute(job_id, _copy)


def profile_job(job_id: int) -> None:
    _execute(job_id, _profile)


def probe_device(device: Device, progress: Progress) -> None:
    """Read what the device is and save it; JobFailed when it does not answer or cannot be read."""
    for key, label in (("connect", "Log in"), ("read", "Read hardware and llama.cpp"), ("save", "Save")):
        progress.step(key, label)
    progress.start_step("connect")
    try:
        probed = asyncio.run(_probe(device, progress))
    except RemoteError as error:
        mark_unreachable(device, error)
        raise JobFailed(str(error)) from error
    progress.end_step("read", probed.hardware["os"])
    progress.start_step("save")
    save_probe(device, probed)
    for line in _report(device):
        progress.log(line)
    progress.end_step("save", device.state_reason)
    progress.report(device.state_reason or f"{device.name} is ready", 1.0)


def save_probe(device: Device, probed: Probed) -> None:
    """Store what was read; usable memory set by hand stays, profiles that no longer hold are marked."""
    now = timezone.now()
    device.hardware = probed.hardware | {"clock_skew_seconds": round(probed.clock_skew_seconds, 1)}
    problem = missing(probed.llama, device.name)
    unusable = problem and not (probed.llama.get("version") and probed.llama.get("server_path"))
    device.llama = {} if unusable else probed.llama
    device.state, device.state_reason = Device.States.ONLINE, problem
    device.probed_at = device.last_seen_at = now
    device.address = device.address or _own_address(device)
    usable = usable_memory(probed.hardware, device.chosen_gpu)
    device.hardware["usable_text"] = usable.text
    if not device.memory_override_reason:
        device.gpu_usable_bytes, device.ram_usable_bytes = usable.gpu_bytes, usable.ram_bytes
    device.save()
    profiling.mark_stale(device)


def mark_unreachable(device: Device, error: RemoteError) -> None:
    """A device that does not answer is suspect first, lost later; a changed host key is neither."""
    if isinstance(error, HostKeyChanged):
        state = Device.States.KEY_CHANGED
    else:
        silent = abs(timezone.now() - (device.last_seen_at or device.created_at))  # our clock may be set back
        if silent < SUSPECT_AFTER and device.state == Device.States.ONLINE:
            return
        state = Device.States.LOST if silent > LOST_AFTER else Device.States.SUSPECT
    Device.objects.filter(pk=device.pk).update(state=state, state_reason=str(error))


def heartbeat() -> list[Device]:
    """Ask every device whether it is there; returns those that were restarted or changed power since their probe."""
    devices = list(
        Device.objects.filter(in_maintenance=False, probed_at__isnull=False).select_related("identity")
    )
    answers = kept.ask([Question(device, _beat, BEAT_SECONDS) for device in devices])
    changed = []
    for device, answer in zip(devices, answers, strict=True):
        if isinstance(answer, RemoteError):
            mark_unreachable(device, answer)
            continue
        came_back = device.state != Device.States.ONLINE
        values: dict[str, Any] = {"last_seen_at": timezone.now()}
        if came_back:
            values |= {"state": Device.States.ONLINE, "state_reason": ""}
        Device.objects.filter(pk=device.pk).update(**values)
        if has_changed(device, answer):
            changed.append(device)
    return changed


def has_changed(device: Device, answer: str) -> bool:
    """Another boot or another power source than at the last probe: memory, build and speeds may differ."""
    boot_id, _, power = answer.strip().partition("\n")
    on_battery = on_battery_of(power)
    restarted = bool(device.boot_id and boot_id) and boot_id.strip() != device.boot_id
    return restarted or (on_battery is not None and on_battery != device.hardware.get("on_battery"))


async def _probe(device: Device, progress: Progress) -> Probed:
    async with connect(device) as connection:
        progress.end_step("connect")
        progress.start_step("read")
        return await probe(connection, device.llama_folder, time.time)


async def _beat(connection: Connection) -> str:
    return (await connection.script(BEAT_PROGRAM, timeout_seconds=BEAT_SECONDS)).stdout


def _execute(job_id: int, work: Callable[[dict[str, Any], Progress], Any]) -> None:
    params = Job.objects.values_list("params", flat=True).get(pk=job_id)
    jobs.execute(job_id, lambda progress: work(params, progress))


def _copy(params: dict[str, Any], progress: Progress) -> None:
    library.copy_model(LanguageModel.objects.get(pk=params["model"]), _device(params), progress)


def _profile(params: dict[str, Any], progress: Progress) -> None:
    model = LanguageModel.objects.get(pk=params["model"])
    grid = profiling.THOROUGH if params["thorough"] else profiling.QUICK
    profiling.profile(_devices(params), model, progress, grid=grid)


def _device(params: dict[str, Any]) -> Device:
    return Device.objects.select_related("identity").get(pk=params["device"])


def _devices(params: dict[str, Any]) -> list[Device]:
    return list(Device.objects.filter(pk__in=params["devices"]).select_related("identity"))


def _own_address(device: Device) -> str | None:
    found = device.hardware["addresses"]
    return found[0] if found else None


def _report(device: Device) -> list[str]:
    hardware, llama = device.hardware, device.llama
    lines = [
        f"{hardware['cpu_model']}, {hardware['cores']} cores, {hardware['os']}",
        f"usable memory: {hardware['usable_text']}",
        *hardware["warnings"],
    ]
    if llama:
        lines.append(f"{llama['server_path']}, {llama['version']}, RPC {llama['rpc_protocol'] or 'unknown'}")
    if abs(hardware["clock_skew_seconds"]) > SKEW_WARNING_SECONDS:
        lines.append(f"its clock is {clock_text(hardware['clock_skew_seconds'])}")
    return lines

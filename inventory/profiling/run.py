"""Profiles devices side by side, one after another where they are the same machine, and saves the tables."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.db import transaction
from django.db.models import Max
from django.utils import timezone

from inventory import library
from inventory.core.gguf import GgufError
from inventory.core.hardware import spare_threads
from inventory.core.model_shape import ModelShape
from inventory.core.profile import ProfileError, Timing, fit, scaled
from inventory.core.quantities import counted
from inventory.models import Device, LanguageModel, ModelFile, Profile
from inventory.profiling.device import Material, time_device
from inventory.profiling.settings import QUICK, Grid
from inventory.remote import RemoteError, connect
from inventory.upstream import UpstreamError
from jobs.core.errors import JobFailed
from jobs.progress import Progress

CHECK_SECONDS = 0.2

Outcome = Profile | str


@dataclass
class Watch:
    """Progress of all devices as one; those of one machine go one after another, machines side by side."""

    progress: Progress
    machines: list[list[str]]

    def __post_init__(self) -> None:
        names = [name for machine in self.machines for name in machine]
        self.shares: dict[str, float] = dict.fromkeys(names, 0.0)
        self.remaining: dict[str, float | None] = dict.fromkeys(names)

    def report(self, name: str, message: str, share: float, remaining_seconds: float | None) -> None:
        self.shares[name] = max(self.shares[name], share)
        self.remaining[name] = remaining_seconds
        whole = sum(self.shares.values()) / len(self.shares)
        self.progress.report(f"{name}: {message}", whole, self.remaining_seconds())

    def remaining_seconds(self) -> float | None:
        """Until the last machine is done; None while one device is not far enough to judge."""
        rests = [[self.remaining[name] for name in machine] for machine in self.machines]
        known = [[rest for rest in machine if rest is not None] for machine in rests]
        if known != rests:
            return None
        return max(sum(machine) for machine in known)


def profile(
    devices: Sequence[Device],
    model: LanguageModel,
    progress: Progress,
    *,
    grid: Grid = QUICK,
    reuse_same_machine: bool = False,
) -> list[Profile]:
    """New profiles of `model` on `devices`; JobFailed when one of them could not be timed.

    With `reuse_same_machine` devices of one boot id and equal threads are timed once; the others' profiles say so.
    """
    chosen, copies = _without_twins(devices) if reuse_same_machine else (list(devices), {})
    for device in chosen:
        progress.step(f"profile:{device.pk}", f"Time the model on {device.name}")
    outcomes = asyncio.run(_profile(chosen, model, progress, grid))
    saved, failures = [], []
    for device in chosen:
        outcome = outcomes[device.pk]
        if isinstance(outcome, str):
            failures.append(f"{device.name}: {outcome}")
            continue
        saved.append(outcome)
        saved += [_copy(outcome, twin) for twin in copies.get(device.pk, [])]
    if failures:
        raise JobFailed(" ".join(failures))
    return saved


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


async def _profile(
    devices: Sequence[Device], model: LanguageModel, progress: Progress, grid: Grid
) -> dict[int, Outcome]:
    """The profile, saved as soon as its device is done, or what went wrong, by device id."""
    places = await asyncio.to_thread(_places, model)
    material = await _material(model, places)
    machines = _machines(devices)
    watch = Watch(progress, [[device.name for device in machine] for machine in machines])
    outcomes: dict[int, Outcome] = {}

    async def one_machine(group: list[Device]) -> None:
        for device in group:
            outcomes[device.pk] = await _time(device, model, material, grid, watch)

    work = asyncio.gather(*(one_machine(group) for group in machines))
    try:
        while not work.done():
            progress.check()
            await asyncio.wait([work], timeout=CHECK_SECONDS)
    finally:
        if not work.done():
            work.cancel()
            with suppress(asyncio.CancelledError):
                await work
    work.result()
    return outcomes


async def _time(
    device: Device, model: LanguageModel, material: Material, grid: Grid, watch: Watch
) -> Outcome:
    key = f"profile:{device.pk}"
    watch.progress.start_step(key)
    try:
        timings = await time_device(
            device, material, grid, lambda text, share, wait: watch.report(device.name, text, share, wait)
        )
        made = await asyncio.to_thread(save, device, model, timings)
    except (RemoteError, UpstreamError, GgufError, ProfileError) as error:
        watch.report(device.name, "not timed", 1.0, 0.0)
        watch.progress.fail_step(key, str(error))
        return str(error)
    rounds = 1 + max(timing.round for timing in timings)
    watch.report(device.name, "timed", 1.0, 0.0)
    watch.progress.end_step(
        key,
        f"{counted(len(timings), 'timing')} in {counted(rounds, 'round')}, {made.residual:.0%} off the fit at most",
    )
    return made


def _machines(devices: Sequence[Device]) -> list[list[Device]]:
    """Devices that are one machine disturb each other: they go one after another."""
    groups: dict[str, list[Device]] = defaultdict(list)
    for device in devices:
        groups[device.boot_id or f"device {device.pk}"].append(device)
    return list(groups.values())


def _without_twins(devices: Sequence[Device]) -> tuple[list[Device], dict[int, list[Device]]]:
    """Devices to time, and for each those that are the same machine under the same conditions."""
    chosen: list[Device] = []
    copies: dict[int, list[Device]] = defaultdict(list)
    for device in devices:
        twin = next((other for other in chosen if _is_twin(device, other)), None)
        if twin is None:
            chosen.append(device)
        else:
            copies[twin.pk].append(device)
    return chosen, copies


def _is_twin(one: Device, other: Device) -> bool:
    return bool(one.boot_id) and one.boot_id == other.boot_id and conditions(one) == conditions(other)


def _copy(made: Profile, twin: Device) -> Profile:
    made_under = made.made_under | {"measured_on": made.device.name}
    return _store(twin, made.model, made.tables, made.samples, made.residual, made_under)


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


def _places(model: LanguageModel) -> list[ModelFile]:
    files = ModelFile.objects.filter(model=model).select_related("device__identity").order_by("device_id")
    return list(files)


async def _material(model: LanguageModel, places: list[ModelFile]) -> Material:
    """Read the headers where the file is nearest: in the library, else on the first device that answers."""
    if not places:
        raise JobFailed(f"No copy of {model.name} is known. Look for models on the Models page first.")
    nearest_first = sorted(places, key=lambda file: file.device_id is not None)
    problems = []
    for file in nearest_first:
        device = file.device or library.library_device()
        try:
            async with connect(device) as connection:
                found = await library.found_again(connection, file.path)
                inspected = await library.inspect(connection, found)
        except (RemoteError, GgufError) as error:
            problems.append(str(error))
            continue
        if inspected.fingerprint != model.fingerprint:
            problems.append(f"{file} has changed since it was found")
            continue
        return _with_places(inspected, found, file, places)
    raise JobFailed(f"{model.name} could not be read: {'; '.join(problems)}. Look for models again.")


def _with_places(
    inspected: library.Inspected, found: library.FoundFile, file: ModelFile, places: list[ModelFile]
) -> Material:
    names = [Path(path).name for path, _ in found.shards]
    by_device = {
        place.device_id: tuple(str(Path(place.path).parent / name) for name in names)
        for place in places
        if place.device_id is not None
    }
    shared = tuple(Path(path) for path, _ in found.shards) if file.device_id is None else None
    return Material(inspected, by_device, shared)

"""Profiles devices side by side, one after another where they are the same machine, and saves the tables."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from inventory import library
from inventory.core.gguf import GgufError
from inventory.core.profile import ProfileError
from inventory.core.quantities import counted
from inventory.models import Device, LanguageModel, ModelFile, Profile
from inventory.profiling.device import Material, time_device
from inventory.profiling.settings import QUICK, Grid
from inventory.profiling.versions import save
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
) -> list[Profile]:
    """New profiles of `model` on `devices`; JobFailed when one of them could not be timed."""
    for device in devices:
        progress.step(f"profile:{device.pk}", f"Time the model on {device.name}")
    outcomes = asyncio.run(_profile(devices, model, progress, grid))
    saved, failures = [], []
    for device in devices:
        outcome = outcomes[device.pk]
        if isinstance(outcome, str):
            failures.append(f"{device.name}: {outcome}")
            continue
        saved.append(outcome)
    if failures:
        raise JobFailed(" ".join(failures))
    return saved


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
        cause, *log = str(error).splitlines() or ["no reason was given"]
        for line in log:
            watch.progress.log(f"{device.name}: {line}")
        watch.report(device.name, "not timed", 0.0, 0.0)
        watch.progress.fail_step(key, "not timed")
        return cause
    rounds = 1 + max(timing.round for timing in timings)
    watch.report(device.name, "timed", 1.0, 0.0)
    watch.progress.end_step(
        key,
        f"{counted(len(timings), 'timing')} in {counted(rounds, 'round')}, {made.error_text}",
    )
    return made


def _machines(devices: Sequence[Device]) -> list[list[Device]]:
    """Devices that are one machine disturb each other: they go one after another."""
    groups: dict[str, list[Device]] = defaultdict(list)
    for device in devices:
        groups[device.boot_id or f"device {device.pk}"].append(device)
    return list(groups.values())


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

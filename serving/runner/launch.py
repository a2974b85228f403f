"""Plan and deploy: measures what is missing, plans, and waits for a confirm; each part a line of the checklist."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta

from django.utils import timezone

from inventory import library, links, profiling
from inventory import runner as inventory
from inventory.core.quantities import counted
from inventory.models import Device, LanguageModel, Link, ModelFile, Profile
from inventory.probe import Probed, probe
from inventory.remote import RemoteError, connect
from inventory.services import serving_now
from jobs import runner as jobs
from jobs.core.errors import JobFailed, LeaseLost
from jobs.progress import Progress
from planner.core.errors import BadDocument, NoFeasiblePlan
from planner.core.problem import Problem
from planner.from_inventory import CannotPlan, cluster_of, standing_gaps
from planner.models import PlanRun
from planner.runner import plan_inline
from planner.services import record_run
from serving.models import Launch

TASK = "serving.launch"
PROBE_HOLDS_FOR = timedelta(hours=6)
LINK_HOLDS_FOR = timedelta(days=7)
NOISY_HOLDS_FOR = timedelta(
    hours=1
)  # whoever goes on with a noisy profile may, and is not made to wait twice
PART_LABELS = {
    "probe": "Probe the devices",
    "files": "Find the model on the devices",
    "links": "Measure the links between them",
    "profiles": "Profile the model on each device",
    "plan": "Search the best plan",
}
PART_SHARES = {
    "probe": (0.0, 0.05),
    "files": (0.05, 0.1),
    "links": (0.1, 0.25),
    "profiles": (0.25, 0.85),
    "plan": (0.85, 1.0),
}
EXPECTED_FAILURES = (RemoteError, CannotPlan, NoFeasiblePlan, BadDocument)

Part = Callable[[Progress, Launch, list[Device]], str | None]


def launch(job_id: int) -> None:
    jobs.execute(job_id, lambda progress: prepare(job_id, progress))


def prepare(job_id: int, progress: Progress) -> None:
    """Everything up to the confirm; a part that finds nothing to do is skipped with the reason."""
    found = Launch.objects.select_related("model").get(job_id=job_id)
    list_parts(progress, found)
    try:
        for key, part in PARTS.items():
            with progress.span(*PART_SHARES[key]):
                run_part(progress, key, part, found)
    except LeaseLost:
        raise
    except Exception:  # not BaseException: when its worker is stopped the job goes on after the next start
        Launch.objects.filter(pk=found.pk).update(stage=Launch.Stages.ENDED)
        raise
    Launch.objects.filter(pk=found.pk).update(stage=Launch.Stages.CONFIRM)
    progress.report("The plan is ready", 1.0)


def list_parts(progress: Progress, found: Launch) -> None:
    """The checklist in the order of the work; profiling has a line of its own for each device."""
    for key, label in PART_LABELS.items():
        progress.step(key, label)
        if key == "profiles":
            for device in found.devices.all():
                progress.step(f"profile:{device.pk}", f"Time the model on {device}")


def run_part(progress: Progress, key: str, part: Part, found: Launch) -> None:
    progress.check()
    progress.start_step(key)
    progress.report(PART_LABELS[key])
    devices = list(found.devices.select_related("identity"))
    try:
        said = part(progress, found, devices)
    except EXPECTED_FAILURES as error:
        progress.fail_step(key, str(error))
        raise JobFailed(str(error)) from error
    except JobFailed as error:
        progress.fail_step(key, str(error))
        raise
    if said is None:
        progress.skip_step(key, "still fresh")
    else:
        progress.end_step(key, said)


def probe_devices(progress: Progress, found: Launch, devices: list[Device]) -> str | None:
    """Read again what was never read, long ago, or before the device went silent."""
    since = timezone.now() - PROBE_HOLDS_FOR
    stale = [
        device
        for device in devices
        if device.probed_at is None or device.probed_at < since or device.state != Device.States.ONLINE
    ]
    if not stale:
        return None
    for device, probed in asyncio.run(probe_all(stale)):
        if isinstance(probed, RemoteError):
            inventory.mark_unreachable(device, probed)
            raise JobFailed(f"{device}: {probed} Or leave the device out.")
        inventory.save_probe(device, probed)
        if not device.llama:
            raise JobFailed(f"{device}: {device.state_reason} Or leave the device out.")
    gaps = standing_gaps(found.model, devices)
    if gaps:
        raise CannotPlan(gaps)
    return ", ".join(str(device) for device in stale)


async def probe_all(devices: list[Device]) -> list[tuple[Device, Probed | RemoteError]]:
    async def one(device: Device) -> tuple[Device, Probed | RemoteError]:
        try:
            async with connect(device) as connection:
                return device, await probe(connection, device.llama_folder, time.time)
        except RemoteError as error:
            return device, error

    return list(await asyncio.gather(*(one(device) for device in devices)))


def find_files(progress: Progress, found: Launch, devices: list[Device]) -> str | None:
    """Look where copies of the model lie; a master without one gets it copied when the plan is deployed."""
    known = ModelFile.objects.filter(model=found.model)
    if known.filter(device__in=devices).values("device").distinct().count() == len(devices):
        return None
    library.scan(devices, progress)
    names = sorted({str(file.device or "the library of this server") for file in known.all()})
    if not names:
        raise JobFailed(
            f"No copy of {found.model} is left, neither on the devices nor in the library of this server. "
            "Put the file back, or choose another model."
        )
    return f"on {', '.join(names)}"


def measure_links(progress: Progress, found: Launch, devices: list[Device]) -> str | None:
    """Measure all links again when one is missing, too old or outdated."""
    since = timezone.now() - LINK_HOLDS_FOR
    fresh = Link.objects.filter(measured_at__gt=since).exclude(pk__in=Link.objects.outdated())
    between = fresh.filter(source__in=devices, target__in=devices)
    if len(devices) < 2 or between.count() >= len(devices) * (len(devices) - 1):
        return None
    tell_of_running(progress, devices)
    return f"{len(links.measure_links(devices, progress))} directions"


def tell_of_running(progress: Progress, devices: list[Device]) -> None:
    """Whoever plans for devices that serve wants them measured; that answers get slower meanwhile is said."""
    text = serving_now(devices)
    if text:
        progress.log(f"{text} Its answers are slower while its devices are measured, and so are the timings.")


def kept_profiles(model: LanguageModel, devices: list[Device]) -> dict[int, str]:
    """What is said of each device whose profile is used as it is; a noisy one is timed again, unless it is new."""
    since = timezone.now() - NOISY_HOLDS_FOR
    current = Profile.objects.current().filter(stale_reason="", model=model, device__in=devices)
    return {
        one.device_id: f"kept, but {one.doubt_text}" if one.doubt_text else "its profile still holds"
        for one in current.select_related("model")
        if not one.noise_text or one.measured_at > since
    }


def profile_devices(progress: Progress, found: Launch, devices: list[Device]) -> str | None:
    kept = kept_profiles(found.model, devices)
    missing = [device for device in devices if device.pk not in kept]
    for pk, text in kept.items():
        progress.skip_step(f"profile:{pk}", text)
    if not missing:
        return None
    tell_of_running(progress, missing)
    made = profiling.profile(missing, found.model, progress)
    return f"{counted(len(made), 'device')} timed"


def plan(progress: Progress, found: Launch, devices: list[Device]) -> str | None:
    """Search inside this job; a restarted job goes on with the run it has begun."""
    Launch.objects.filter(pk=found.pk).update(stage=Launch.Stages.PLANNING)
    run = PlanRun.objects.filter(job=found.job).first() or begin_run(found, devices)
    best = plan_inline(Problem.from_dict(run.cluster), progress, run)
    Launch.objects.filter(pk=found.pk).update(plan_run=run)
    return counted(len(best.replicas), "replica")


def begin_run(found: Launch, devices: list[Device]) -> PlanRun:
    cluster = cluster_of(found.model, devices, found.workload, found.policy)
    ids = {device.name: device.pk for device in devices}
    method, seed = PlanRun.Methods.AUTO, int(found.policy.get("seed", 0))
    return record_run(found.job, cluster, method, seed, found.model, ids)


PARTS: dict[str, Part] = {
    "probe": probe_devices,
    "files": find_files,
    "links": measure_links,
    "profiles": profile_devices,
    "plan": plan,
}

"""Plan and deploy on three devices with real llama.cpp: from nothing measured to an answer."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from inventory import library
from inventory.models import Device, LanguageModel, Link, Profile
from inventory.remote import connect
from jobs import services as jobs
from jobs.core.errors import JobFailed
from jobs.models import Job
from planner.from_inventory import CannotPlan
from serving import tasks
from serving.models import Deployment, Launch
from serving.runner import launch as parts
from serving.services import launches
from serving.services.deployments import CannotDeploy
from tests.inventory.conftest import MakeProgress, make_progress
from tests.serving.conftest import Laboratory

__all__ = ["make_progress"]

WORKLOAD = {
    "input_tokens": 64,
    "output_tokens": 32,
    "arrival_seconds": 1.0,
    "requests": 20,
    "context_tokens": 1024,
}
POLICY = {
    "min_tokens_per_second": 0.5,
    "max_slots": 2,
    "runtime": "serial",
    "topology": "star",
    "allow_mixed": True,
    "allow_idle": True,
    "seed": 0,
}


@pytest.fixture
def unmeasured(laboratory: Laboratory) -> Laboratory:
    """Devices that were never probed, with the model's true fingerprint."""
    folder = str(Path(laboratory.devices["box-1"].llama["server_path"]).parent)
    Device.objects.update(probed_at=None, llama_folder=folder)
    path = laboratory.model.files.all()[0].path
    LanguageModel.objects.update(fingerprint=asyncio.run(fingerprint(laboratory.devices["box-1"], path)))
    return laboratory


async def fingerprint(device: Device, path: str) -> str:
    async with connect(device) as connection:
        return (await library.inspect(connection, await library.found_again(connection, path))).fingerprint


def launch(laboratory: Laboratory, *names: str, **options: Any) -> Launch:
    devices = [laboratory.devices[name] for name in names]
    started = launches.start_launch(laboratory.model, devices, WORKLOAD, POLICY, None, **options)
    with suppress(JobFailed):
        tasks.launch(started.job_id)
    started.refresh_from_db()
    return started


def states(launch: Launch) -> dict[str, str]:
    return dict(launch.job.steps.values_list("key", "state"))


def test_launch_measures_what_is_missing_plans_and_waits_for_one_confirm(
    unmeasured: Laboratory, admin_client: Client, make_progress: MakeProgress
) -> None:
    first = launch(unmeasured, "box-1", "box-2")
    assert first.stage == Launch.Stages.CONFIRM, first.job.error
    assert {states(first)[key] for key in ("probe", "links", "profiles", "plan")} == {"done"}
    assert not Deployment.objects.exists()
    page = admin_client.get(reverse("serving:launch", args=[first.pk])).content.decode()
    assert re.search(r"Each request gets.{0,200}<small>tokens/s</small>", page, re.DOTALL)
    assert "You can close this page" not in page

    deployment = launches.confirm_launch(first, None)
    unmeasured.work()
    first.refresh_from_db()
    deployment.refresh_from_db()
    assert (first.stage, deployment.state) == (Launch.Stages.READY, Deployment.States.RUNNING)
    with pytest.raises(CannotDeploy, match="not waiting for a confirm"):
        launches.confirm_launch(first, None)

    again = launch(unmeasured, "box-1", "box-2", deploys_unasked=True)
    assert {states(again)[key] for key in ("probe", "links", "profiles")} == {"skipped"}
    assert again.stage == Launch.Stages.DEPLOYING
    assert Profile.objects.count() == 2

    Link.objects.all()[0].outdate()
    measured = parts.measure_links(make_progress(), again, list(again.devices.all()))
    assert (measured, Link.objects.outdated().exists()) == ("2 directions", False)


def test_device_without_llama_cpp_is_named(unmeasured: Laboratory, tmp_path: Path) -> None:
    Device.objects.filter(name="box-2").update(llama_folder=str(tmp_path))
    ended = launch(unmeasured, "box-1", "box-2")
    assert ended.stage == Launch.Stages.ENDED
    assert "box-2" in ended.job.error
    assert "leave the device out" in ended.job.error


def test_device_known_to_lack_llama_cpp_is_refused_at_once(
    laboratory: Laboratory, admin_client: Client
) -> None:
    Device.objects.filter(name="box-2").update(llama={})
    devices = list(Device.objects.filter(name__in=["box-1", "box-2"]))
    with pytest.raises(CannotPlan, match="No llama.cpp was found on box-2: install llama-server"):
        launches.start_launch(laboratory.model, devices, WORKLOAD, POLICY, None)
    typed = WORKLOAD | {"min_tokens_per_second": 0.5, "max_slots": 2, "runtime": "serial", "seed": 0}
    typed |= {"method": "auto", "model": laboratory.model.pk, "devices": [device.pk for device in devices]}
    answer = admin_client.post(reverse("serving:launch_new"), typed)
    assert answer.status_code == 422
    assert "No llama.cpp was found on box-2" in str(answer.context["form"].errors["devices"])
    assert not Launch.objects.exists() and not Job.objects.exists()


def test_second_click_finds_the_first_launch(laboratory: Laboratory) -> None:
    devices = list(laboratory.devices.values())
    first = launches.start_launch(laboratory.model, devices, WORKLOAD, POLICY, None)
    with pytest.raises(jobs.AlreadyRunning) as refusal:
        launches.start_launch(laboratory.model, devices, WORKLOAD, POLICY, None)
    assert refusal.value.job == first.job


def test_the_parts_of_a_launch_make_up_the_whole() -> None:
    assert list(parts.PART_SHARES) == list(parts.PARTS) == list(parts.PART_LABELS)
    begins, ends = zip(*parts.PART_SHARES.values(), strict=True)
    assert (begins[0], ends[-1]) == (0.0, 1.0)
    assert begins[1:] == ends[:-1]

"""From a password to profiles, on three SSH hosts with real llama.cpp and a real model."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from demo.hosts import DemoHost
from inventory import runner, services
from inventory.core.model_shape import ModelShape
from inventory.models import Device, LanguageModel, Link, ModelFile, Profile
from jobs.models import Job, State
from tests.inventory.conftest import register

pytestmark = pytest.mark.django_db(transaction=True)


def left_behind(lab: list[DemoHost]) -> list[Path]:
    """Files of ours on the hosts, and processes that still run from their folders."""
    files = [path for host in lab for path in (host.home / ".cache").rglob("*") if path.is_file()]
    marks = [f"{host.home}/.cache".encode() for host in lab]
    return files + [
        path for path in Path("/proc").glob("[0-9]*/cmdline") if any(mark in _bytes(path) for mark in marks)
    ]


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def done(job: Job) -> Job:
    job.refresh_from_db()
    assert job.state == State.SUCCEEDED, job.error
    return job


def test_devices_are_registered_probed_linked_and_profiled(lab: list[DemoHost], small_model: Path) -> None:
    for host in lab:
        place = host.home / "models" / "tiny model.gguf"
        place.parent.mkdir()
        shutil.copy(small_model, place)
    devices = [register(host) for host in lab]
    for device, host in zip(devices, lab, strict=True):
        assert host.password not in str(Device.objects.filter(pk=device.pk).values())
        job = services.start_probe(device, None)
        runner.probe_job(job.pk)
        done(job)
        device.refresh_from_db()
        assert device.hardware["memory_total_bytes"] > 0
        assert device.llama["rpc_protocol"]
        assert device.state == Device.States.ONLINE
    job = services.start_links(devices, None)
    runner.links_job(job.pk)
    done(job)
    assert Link.objects.count() == 6
    assert all(link.bytes_per_second > 1e6 and link.latency_seconds < 1 for link in Link.objects.all())
    job = services.start_scan(devices, None)
    runner.scan_job(job.pk)
    done(job)
    model = LanguageModel.objects.get()
    assert ModelFile.objects.filter(model=model).count() == 3
    assert len(ModelShape.from_dict(model.shape).blocks) == 30
    job = services.start_profile(devices[:1], model, None, thorough=False)
    runner.profile_job(job.pk)
    done(job)
    for made in Profile.objects.current():
        assert made.tables["decode"]["micro_batch"] == [1, 2, 4, 8]
        for phase in ("decode", "prefill"):
            blocks, head = made.tables[phase]["gpu_block_seconds"], made.tables[phase]["head_seconds"]
            assert blocks == sorted(blocks) and head == sorted(head)
            assert min(blocks) > 0 and min(head) > 0
    assert left_behind(lab) == []

"""Devices to ask: the demo's SSH hosts with real llama.cpp, rows without a host, and a job to report to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from demo import hosts
from demo.hosts import DemoHost
from inventory import services
from inventory.core.model_shape import shape_of
from inventory.core.profile import fit
from inventory.models import Device, LanguageModel, Profile
from inventory.services import NewDevice
from jobs.models import Job, State
from jobs.progress import Progress
from serving.models import Deployment, ManagedProcess, Replica
from tests.inventory import tiny_models as tiny
from tests.inventory.test_gguf import header_of
from tests.inventory.test_profile_fit import timings
from tests.lab import threaded_hosts

MakeProgress = Callable[[], Progress]


@pytest.fixture
def lab(tmp_path: Path, llama_server: Path, ggml_rpc_server: Path) -> Iterator[list[DemoHost]]:
    """Three hosts; llama.cpp is on the path of each."""
    found = hosts.hosts(tmp_path)
    for program in (llama_server, ggml_rpc_server):
        found[0].programs.mkdir(parents=True, exist_ok=True)
        (found[0].programs / program.name).symlink_to(program)
    with threaded_hosts.serving(found):
        yield found


def register(host: DemoHost, name: str = "") -> Device:
    key = services.look_up(host.address, host.port)
    new = NewDevice(name or host.name, host.address, host.port, host.username)
    return services.register_device(new, key.line, None, password=host.password)


@pytest.fixture
def make_progress(transactional_db: None) -> Iterator[MakeProgress]:
    """Progress of a job that nobody else runs."""
    opened: list[Progress] = []

    def make() -> Progress:
        progress = Progress(Job.objects.create(kind="test", label="test", state=State.RUNNING, lease="test"))
        progress.open()
        opened.append(progress)
        return progress

    yield make
    for progress in opened:
        progress.close(None)


GB = 10**9
HARDWARE: dict[str, Any] = {
    "os": "Debian GNU/Linux 12",
    "kernel": "Linux 6.1.0 x86_64",
    "cpu_model": "Ryzen 7 5800H",
    "cpu_features": ["avx2"],
    "cores": 8,
    "memory_total_bytes": 16 * GB,
    "memory_available_bytes": 14 * GB,
    "boot_id": "b",
    "gpus": [],
    "system_gpus": [],
    "is_unified": False,
    "addresses": ["10.0.0.1"],
    "disk_free_bytes": {"/": 100 * GB},
    "on_battery": None,
    "tools": ["python3"],
    "home": "/home/ada",
    "has_our_processes": False,
    "driver": "",
    "warnings": ["runs on battery"],
    "sources": {"memory": "/proc/meminfo", "cores": "nproc", "gpus": "llama-server --list-devices"},
    "usable_text": "no GPU: one pool of RAM",
    "clock_skew_seconds": 0.2,
}
LLAMA = {
    "server_path": "/opt/llama-server",
    "rpc_server_path": "/opt/ggml-rpc-server",
    "version": "1 (abc)",
    "rpc_protocol": "5.0.0",
    "sha256": "ab" * 32,
    "flags": [],
    "devices": [],
}


@pytest.fixture
def devices(db: None) -> list[Device]:
    now = timezone.now()
    return [
        Device.objects.create(
            name=f"box-{number}",
            host=f"10.0.0.{number}",
            username="ada",
            host_key="ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ3oQYQ0aA2Bb6cJ8vYV8tqE7m3b8Z4oJ4n7fWm0Q2bT",
            state=Device.States.ONLINE,
            hardware=HARDWARE,
            llama=LLAMA,
            gpu_usable_bytes=14 * GB,
            ram_usable_bytes=0,
            probed_at=now,
            last_seen_at=now,
        )
        for number in (1, 2, 3)
    ]


@pytest.fixture
def model(db: None, tmp_path: Path) -> LanguageModel:
    shape = shape_of([header_of(tiny.LLAMA.write(tmp_path / "tiny.gguf"))])
    return LanguageModel.objects.create(
        name="tiny", architecture="llama", fingerprint="f", size_bytes=shape.file_bytes, shape=shape.to_dict()
    )


@pytest.fixture
def profile(devices: list[Device], model: LanguageModel) -> Profile:
    found = timings()
    fitted = fit(found, 1.0)
    return Profile.objects.create(
        device=devices[0],
        model=model,
        tables=fitted.tables,
        samples=[timing.to_dict() for timing in found],
        residual=fitted.residual,
        made_under={"build": "1", "threads": 7, "main_device": "CPU", "noisy": []},
        measured_at=timezone.now(),
    )


@pytest.fixture
def deployment(devices: list[Device], model: LanguageModel) -> Deployment:
    """It serves from the first device."""
    deployment = Deployment.objects.create(model=model, name="tiny", plan={}, cluster={}, context_tokens=1)
    replica = Replica.objects.create(deployment=deployment, index=0, role=Replica.Roles.DECODE, slots=1)
    ManagedProcess.objects.create(
        replica=replica,
        device=devices[0],
        kind=ManagedProcess.Kinds.MASTER,
        marker="e2llm-0",
        state=ManagedProcess.States.READY,
        pid=4711,
    )
    return deployment

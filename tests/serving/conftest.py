"""A small laboratory on this machine: three devices with real llama.cpp and a real model."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from inventory.core.gguf import header_from_bytes
from inventory.core.model_shape import shape_of
from inventory.models import Device, LanguageModel, ModelFile
from jobs.core.errors import JobFailed
from jobs.models import Job, State
from serving import upstream
from serving.core.commands import ModelFacts, replica_commands
from serving.core.placement import HostFacts
from serving.gateway.routes import Endpoint
from serving.models import Deployment
from serving.runner import operate, states
from serving.services import deployments
from tests.serving.gateway_server import Running, running_gateway
from tests.serving.stub_replica import Stub, running_stub

HEADER_BYTES = 16 * 2**20
CONTEXT_TOKENS = 1024
# Runs of the tests beside each other on one machine would take each other's ports.
OWN_NETWORK = f"127.{100 + os.getpid() // 256 % 100}.{os.getpid() % 256}"
MIB = 2**20
TOOLS_TEMPLATE = Path(__file__).with_name("tool_calls.jinja")  # the small model's own knows no tools


@dataclass
class Laboratory:
    devices: dict[str, Device]
    model: LanguageModel
    blocks: int
    limit_bytes: int = 300 * MIB
    context_tokens: int = CONTEXT_TOKENS

    def cluster(self) -> dict[str, Any]:
        return {
            "format": "e2llm-cluster/1",
            "model": {
                "name": self.model.name,
                "blocks": self.blocks,
                "block_bytes": 2_000_000,
                "block_resident_bytes": 0,
                "output_bytes": 30_000_000,
            },
            "workload": {"context_tokens": self.context_tokens, "input_tokens": 64, "output_tokens": 32},
            "policy": {"handover": True, "topology": "star"},
            "links": {"default": {"bytes_per_second": 115e6, "latency_seconds": 0.0003}},
            "devices": [{"name": name, "ram_usable_bytes": 0} for name in self.devices],
        }

    def plan(self, *replicas: dict[str, Any]) -> dict[str, Any]:
        roles = {replica["role"] for replica in replicas}
        return {"mode": "mixed" if roles == {"mixed"} else "disaggregated", "replicas": list(replicas)}

    def replica(self, role: str, blocks: dict[str, int], slots: int = 2) -> dict[str, Any]:
        """The first device is the master."""
        stages = [self.stage(name, count, index == 0) for index, (name, count) in enumerate(blocks.items())]
        rates = {
            "prefill_tokens_per_second": 200.0,
            "decode_tokens_per_second": 20.0,
            "requests_per_second": 1.0,
        }
        times = {"bottleneck_seconds": 0.02, "pass_seconds": 0.02, "tpot_seconds": 0.05}
        return {"role": role, "slots": slots, "micro_batch": 1, "stages": stages, **rates, **times}

    def stage(self, name: str, blocks: int, master: bool) -> dict[str, Any]:
        times = {"seconds": 0.01}
        sizes = {"gpu_bytes": 200 * MIB, "gpu_limit_bytes": self.limit_bytes, "ram_bytes": 0}
        return {"device": name, "master": master, "gpu_blocks": blocks, "cpu_blocks": 0, **times, **sizes}

    def split(self, role: str = "mixed") -> dict[str, Any]:
        return self.replica(role, {"box-1": self.blocks // 2, "box-2": self.blocks - self.blocks // 2})

    def single(self, role: str = "mixed", device: str = "box-3") -> dict[str, Any]:
        return self.replica(role, {device: self.blocks})

    def deploy(self, *replicas: dict[str, Any]) -> Deployment:
        deployment = deployments.deploy(self.plan(*replicas), self.cluster(), self.model, None)
        self.work()
        deployment.refresh_from_db()
        return deployment

    def work(self) -> None:
        """Be the worker: do every pending job, and record a failure without raising it."""
        for job in Job.objects.filter(state=State.PENDING, kind=operate.TASK).order_by("pk"):
            with suppress(JobFailed):
                operate.operate(job.pk)


@pytest.fixture(scope="session")
def model_bytes(small_model: Path) -> tuple[dict[str, Any], int]:
    size = small_model.stat().st_size
    with small_model.open("rb") as file:
        shape = shape_of([header_from_bytes(file.read(HEADER_BYTES), size)])
    return shape.to_dict(), len(shape.blocks)


@pytest.fixture(scope="session")
def llama_facts(llama_server: Path, ggml_rpc_server: Path) -> dict[str, Any]:
    text = subprocess.run([llama_server, "--help"], capture_output=True, text=True, check=True).stdout
    return {
        "server_path": str(llama_server),
        "rpc_server_path": str(ggml_rpc_server),
        "version": "test build",
        "rpc_protocol": "5.0.0",
        "flags": sorted(set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", text))),
    }


@pytest.fixture
def laboratory(
    transactional_db: None,
    small_model: Path,
    model_bytes: tuple[dict[str, Any], int],
    llama_facts: dict[str, Any],
) -> Iterator[Laboratory]:
    shape, blocks = model_bytes
    model = LanguageModel.objects.create(
        name="tiny", architecture="llama", fingerprint="f" * 64, size_bytes=shape["file_bytes"], shape=shape
    )
    devices = {}
    for number in (1, 2, 3):
        device = Device.objects.create(
            name=f"box-{number}",
            connection=Device.Connections.LOCAL,
            address=f"{OWN_NETWORK}.{30 + number}",
            state=Device.States.ONLINE,
            hardware={"cores": 1, "gpus": [], "memory_total_bytes": 4 * 10**9},
            llama=llama_facts,
            gpu_usable_bytes=300 * MIB,
            ram_usable_bytes=0,
            probed_at=timezone.now(),
        )
        ModelFile.objects.create(
            model=model,
            device=device,
            path=str(small_model),
            size_bytes=small_model.stat().st_size,
            seen_at=timezone.now() - timedelta(hours=1),
        )
        devices[device.name] = device
    laboratory = Laboratory(devices, model, blocks)
    yield laboratory
    for deployment in Deployment.objects.all():
        Job.objects.active().update(state=State.CANCELLED)
        deployments.stop(deployment, None)
        laboratory.work()
    left = states.left_on_hosts()
    assert not left.exists(), f"{list(left)} were left running"


@pytest.fixture(scope="module")
def real_replica(
    llama_facts: dict[str, Any],
    small_model: Path,
    model_bytes: tuple[dict[str, Any], int],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Endpoint]:
    """One llama-server, started with the command line of a plan and a chat template that knows tools."""
    folder = tmp_path_factory.mktemp("replica")
    host = HostFacts(
        device="box",
        address="127.0.0.41",
        port=18741,
        gpus=(),
        threads=1,
        server_path=llama_facts["server_path"],
        rpc_server_path=llama_facts["rpc_server_path"],
        model_path=str(small_model),
        flags=frozenset(llama_facts["flags"]),
        marker="e2llm-00000000abcd",
        run_folder=str(folder),
        slot_folder=str(folder),
    )
    _, blocks = model_bytes
    stage = {"device": "box", "master": True, "gpu_blocks": blocks, "cpu_blocks": 0}
    plan = {"mode": "mixed", "replicas": [{"role": "mixed", "slots": 2, "stages": [stage]}]}
    command = replica_commands(plan, ModelFacts(blocks, 1024), {"box": host})[0].master
    (folder / "api-key").write_text("secret\n")
    with Path(command.log_path).open("wb") as log:
        process = subprocess.Popen(
            [*command.argv, "--chat-template-file", TOOLS_TEMPLATE],
            env={**os.environ, **command.environment},
            stdout=log,
            stderr=log,
        )
    try:
        target = upstream.Target(host.address, host.port, "secret")
        asyncio.run(until_healthy(target))
        yield Endpoint(1, "mixed", 2, "M1", target, None, "", False, 0)
    finally:
        process.terminate()
        process.wait()


async def until_healthy(target: upstream.Target) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            await upstream.call(target, "GET", "/health")
            return
        except upstream.UpstreamError:
            await asyncio.sleep(0.2)
    raise AssertionError("llama-server did not come up")


@pytest.fixture
async def gateway() -> AsyncIterator[Running]:
    async with running_gateway() as running:
        yield running


@pytest.fixture
async def stub() -> AsyncIterator[Stub]:
    async with running_stub() as one:
        yield one

"""The paper's eight devices as a cluster file, and the same as rows of an inventory."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.db import connection
from django.test import Client
from django.utils import timezone

from accounts.models import User
from inventory.core.model_shape import BlockShape, ModelShape
from inventory.models import Device, LanguageModel, ModelFile, Profile
from planner import runner, services
from planner.models import PlanRun
from tests.conftest import wait_until
from tests.running_site import free_port

GPT_OSS, QWEN3 = (example.key for example in services.EXAMPLES)


def cluster_of(key: str = GPT_OSS) -> dict[str, Any]:
    return next(example for example in services.EXAMPLES if example.key == key).cluster()


@pytest.fixture
def cluster() -> dict[str, Any]:
    return cluster_of()


@pytest.fixture
def small_cluster() -> dict[str, Any]:
    """Three of the devices: a search of an instant."""
    document = cluster_of()
    return {**document, "devices": [document["devices"][index] for index in (0, 1, 4)]}


@pytest.fixture
def page(operator: User) -> Client:
    """A browser in which an operator is logged in."""
    client = Client()
    client.force_login(operator)
    return client


def finished_run(cluster: dict[str, Any], user: User, **changes: Any) -> PlanRun:
    run = services.start_run(cluster, "ga", 1, user, **changes)
    runner.execute(run.job_id)
    run.refresh_from_db()
    return run


BLOCK = BlockShape("full", {"ffn_up.weight": 400_000_000}, 400_000_000, 0, 4096, None, 0)


def shape(**changes: Any) -> ModelShape:
    fields: dict[str, Any] = {
        "architecture": "llama",
        "name": "Tiny",
        "quantisation": "Q4_0",
        "blocks": (BLOCK,) * 24,
        "embedding_length": 2048,
        "output_bytes": 100_000_000,
        "embedding_bytes": 100_000_000,
        "vocabulary": 32_000,
        "context_train": 16_384,
        "has_chat_template": True,
        "shards": 1,
        "file_bytes": 10**10,
        "weight_bytes": 10**10,
        "parameters": 10**10,
        "experts": 0,
        "experts_used": 0,
        "is_tied": False,
        "is_mla": False,
        "feed_forward_length": 8192,
    }
    return ModelShape(**(fields | changes))


@pytest.fixture
def model(db: None) -> LanguageModel:
    """With a copy in the library."""
    made = LanguageModel.objects.create(
        name="Tiny-10B",
        architecture="llama",
        fingerprint="f" * 64,
        size_bytes=10**10,
        shape=shape().to_dict(),
    )
    ModelFile.objects.create(model=made, path="/library/tiny.gguf", size_bytes=10**10, seen_at=timezone.now())
    return made


@pytest.fixture
def devices(model: LanguageModel) -> list[Device]:
    """Dev.1, Dev.2 and Dev.5 of the paper, probed and profiled."""
    chosen = [entry for entry in cluster_of()["devices"] if entry["name"] in {"Dev.1", "Dev.2", "Dev.5"}]
    return [profiled_device(entry, model) for entry in chosen]


def profiled_device(entry: dict[str, Any], model: LanguageModel) -> Device:
    device = Device.objects.create(
        name=entry["name"],
        host="192.0.2.1",
        state=Device.States.ONLINE,
        hardware={"boot_id": entry["name"], "cpu_model": entry["hardware"], "gpus": []},
        llama={"server_path": "/opt/llama-server", "rpc_server_path": "/opt/rpc-server"},
        gpu_usable_bytes=int(entry["gpu_usable_bytes"]),
        ram_usable_bytes=int(entry["ram_usable_bytes"]),
        probed_at=timezone.now(),
    )
    tables = {"decode": entry["decode"], "prefill": entry["prefill"]}
    Profile.objects.create(
        device=device, model=model, tables=tables, residual=0.02, measured_at=timezone.now()
    )
    return device


def many_devices(count: int) -> dict[str, Any]:
    """A cluster of distinct devices, large enough that a search takes a while."""
    document = cluster_of(QWEN3)
    entries = document["devices"]
    document["devices"] = [
        {
            **entries[index % 8],
            "name": f"Dev.{index + 1}",
            "kind": f"kind-{index}",
            "gpu_usable_bytes": entries[index % 8]["gpu_usable_bytes"] + 1e6 * index,
        }
        for index in range(count)
    ]
    return document


@pytest.fixture
def site_environment(valkey_url: str, transactional_db: None, tmp_path: Path) -> dict[str, str]:
    """For processes of the product on the test's own database, Valkey and signing key."""
    (tmp_path / "e2llm.sqlite3").symlink_to(connection.settings_dict["NAME"])
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "e2llm_web.settings",
        "E2LLM_DATA": str(tmp_path),
        "E2LLM_SECRET_KEY": settings.SECRET_KEY,
        "REDIS_URL": valkey_url,
    }


@pytest.fixture
def worker(site_environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A real Celery worker of its own process."""
    command = [
        sys.executable,
        "-m",
        "celery",
        "-A",
        "e2llm_web",
        "worker",
        "-c",
        "2",
        "--loglevel",
        "WARNING",
    ]
    process = subprocess.Popen(command, env=site_environment, start_new_session=True)
    yield process
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.fixture
def web(site_environment: dict[str, str]) -> Iterator[str]:
    """Address of the real pages and websockets in a process of their own."""
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "e2llm_web.asgi:application", "--port", str(port)]
    process = subprocess.Popen([*command, "--log-level", "warning"], env=site_environment)
    address = f"http://127.0.0.1:{port}"
    wait_until(lambda: answers(port), "the pages answer")
    yield address
    process.kill()
    process.wait()


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def children_of(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(pid) for pid in listed.split()]

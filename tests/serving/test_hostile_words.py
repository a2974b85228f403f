"""Names, error texts, files and logs as a hostile host or person would write them: every page shows them as text."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.test import Client
from django.utils import timezone

from accounts import services as accounts
from accounts.models import User
from inventory.core.gguf import header_from_bytes
from inventory.core.model_shape import shape_of
from inventory.models import Device, LanguageModel, ModelFile
from jobs.models import Job, State
from serving.models import Deployment, ManagedProcess, Replica, RequestSample
from serving.services import logs
from tests.serving.tiny_embedder import write_embedder

HOSTILE = "<img src=x onerror=alert(1)>\"'><script>alert(2)</script>"
SHOWN = ("&lt;img", "&lt;script&gt;")
NEVER = ("<img src=x", "<script>alert", "onerror=alert(1)>\"'>")


@pytest.fixture
def hostile(admin: User, tmp_path: Path) -> list[str]:
    """Rows whose every text is hostile, and the pages that show them."""
    model, device = hostile_model(tmp_path), hostile_device()
    ModelFile.objects.create(
        model=model, device=device, path=f"/{HOSTILE}.gguf", size_bytes=1, seen_at=timezone.now()
    )
    job = Job.objects.create(
        kind="x", label=HOSTILE, subject="x", state=State.FAILED, message=HOSTILE, error=HOSTILE
    )
    deployment = hostile_deployment(model, device)
    key, _ = accounts.create_api_key(admin, HOSTILE[:80])
    accounts.audit(admin, "device.added", HOSTILE, {"name": HOSTILE}, HOSTILE[:45])
    return [
        *("/", "/devices/", f"/devices/{device.pk}/", "/models/", f"/models/{model.pk}/", "/profiles/"),
        *("/deployments/", f"/deployments/{deployment.pk}/", "/traffic/", "/traffic/requests/req-1/"),
        *("/jobs/", f"/jobs/{job.pk}/", "/settings/keys/", f"/settings/keys/{key.pk}/", "/settings/audit/"),
    ]


def hostile_model(folder: Path) -> LanguageModel:
    path = write_embedder(folder / "m.gguf")
    shape = shape_of([header_from_bytes(path.read_bytes(), path.stat().st_size)]).to_dict()
    shape |= {"name": HOSTILE, "notes": [HOSTILE]}
    return LanguageModel.objects.create(
        name=HOSTILE, architecture=HOSTILE[:40], fingerprint="f" * 64, size_bytes=1, shape=shape
    )


def hostile_device() -> Device:
    return Device.objects.create(
        name=HOSTILE[:60],
        connection=Device.Connections.LOCAL,
        state=Device.States.LOST,
        state_reason=HOSTILE,
        hardware={"cores": 1, "gpus": [], "memory_total_bytes": 1, "cpu": HOSTILE, "os": HOSTILE},
        llama={"version": HOSTILE, "flags": []},
    )


def hostile_deployment(model: LanguageModel, device: Device) -> Deployment:
    """With a replica, a process and a request of its own."""
    stage = {
        "device": HOSTILE,
        "master": True,
        "gpu_blocks": 1,
        "cpu_blocks": 0,
        "gpu_bytes": 1,
        "ram_bytes": 0,
    }
    deployment = Deployment.objects.create(
        model=model,
        name=HOSTILE,
        plan={"mode": "mixed", "replicas": [{"slots": 1, "stages": [stage]}]},
        cluster={"devices": [], "model": {"name": HOSTILE}},
        context_tokens=64,
        state=Deployment.States.DEGRADED,
        state_reason=HOSTILE,
    )
    replica = Replica.objects.create(
        deployment=deployment, index=0, role="mixed", slots=1, state_reason=HOSTILE
    )
    ManagedProcess.objects.create(
        replica=replica,
        device=device,
        kind="master",
        marker="e2llm-000000000001",
        argv=["/x", HOSTILE],
        state="ready",
    )
    RequestSample.objects.create(
        request_id="req-1",
        received_at=timezone.now(),
        outcome="failed",
        status=502,
        error=HOSTILE,
        total_seconds=1.0,
    )
    return deployment


@pytest.mark.django_db
def test_hostile_names_and_error_texts_are_text_on_every_page(
    hostile: list[str], admin_client: Client
) -> None:
    shown = 0
    for path in hostile:
        answer = admin_client.get(path)
        assert answer.status_code == 200, path
        html = answer.content.decode()
        assert not [piece for piece in NEVER if piece in html], path
        shown += any(piece in html for piece in SHOWN)
    assert shown > len(hostile) // 2


ESCAPES = {
    "a colour": ("\x1b[31mred\x1b[0m", "red"),
    "a title of the window": ("\x1b]0;owned\x07text", "text"),
    "a move of the cursor": ("one\x1b[2K\x1b[1Atwo", "onetwo"),
    "a bell and a backspace": ("a\x07b\x08c", "abc"),
    "text from right to left": ("safe\u202egpj.exe", "safegpj.exe"),
}


@pytest.mark.parametrize("what", ESCAPES)
def test_signs_for_a_terminal_are_left_out_of_a_log(what: str) -> None:
    written, shown = ESCAPES[what]
    assert logs.matching(written, "").text == shown

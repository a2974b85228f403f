"""Real llama.cpp that is killed, frozen, or has no room left: what it costs, and whom."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from serving import upstream
from serving.core.handover import Step
from serving.gateway.limits import Limits
from serving.gateway.routes import Endpoint, load_wanted
from serving.gateway.transfer import Transfer
from serving.models import Deployment, ManagedProcess
from tests.conftest import require
from tests.serving.conftest import Laboratory
from tests.serving.gateway_server import Running, running_gateway

ASK = [{"role": "user", "content": "Count slowly from one to one hundred, and name every number."}]
PATIENT = Limits(first_token_seconds=30.0, inter_token_seconds=2.0)


class RealMover(Transfer):
    """The product's own way, with a step that a test can break."""

    def __init__(self) -> None:
        super().__init__(30.0)
        self.moved = 0
        self.breaks = ""

    async def pull(self, source: Endpoint, destination: Endpoint, filename: str) -> int:
        if self.breaks == "deleted":
            (Path(source.slot_folder) / filename).unlink()
        size = await super().pull(source, destination, filename)
        if self.breaks == "flipped":
            flip(Path(destination.slot_folder) / filename)
        self.moved += 1
        return size


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[:16] = bytes(16)
    file.write_bytes(content)


@sync_to_async
def put(laboratory: Laboratory, *replicas: dict[str, Any]) -> Deployment:
    deployment = laboratory.deploy(*replicas)
    assert deployment.state == Deployment.States.RUNNING, deployment.state_reason
    return deployment


@pytest.fixture
async def gateway(valkey_url: str) -> AsyncIterator[Running]:
    mover = RealMover()
    async with running_gateway(PATIENT, mover) as running:
        yield running
    await mover.close()


async def serve(gateway: Running) -> None:
    wanted = await sync_to_async(load_wanted)()
    gateway.gateway.routes.apply(wanted)


async def ask(gateway: Running, deployment: Deployment, max_tokens: int = 16) -> str:
    answer = await gateway.openai.chat.completions.create(
        model=deployment.name, messages=ASK, temperature=0, max_tokens=max_tokens
    )
    return str(answer.choices[0].message.content)


async def until_settled(gateway: Running, deployment: Deployment) -> None:
    balancer = gateway.gateway.routes.by_deployment[deployment.pk].balancer
    for _ in range(400):
        gateway.gateway.pump()
        if not balancer.open and not any(one.running for one in balancer.backends.values()):
            return
        await asyncio.sleep(0.05)
    raise AssertionError("a slot leaked")


async def test_texts_are_equal_with_and_without_handover_and_mixed(
    laboratory: Laboratory, gateway: Running
) -> None:
    deployment = await put(laboratory, laboratory.split("prefill"), laboratory.single("decode"))
    await serve(gateway)
    handed = await ask(gateway, deployment)
    assert gateway.last.handover_outcome == "hit", gateway.last.handover
    await Deployment.objects.filter(pk=deployment.pk).aupdate(handover_on=False)
    await serve(gateway)
    plain = {await ask(gateway, deployment) for _ in range(3)}
    assert gateway.last.handover is None
    assert plain == {handed}


async def test_a_short_follow_up_skips_the_handover_and_reuses_what_the_decode_replica_holds(
    laboratory: Laboratory, gateway: Running
) -> None:
    deployment = await put(laboratory, laboratory.single("prefill", "box-1"), laboratory.single("decode"))
    await serve(gateway)
    first = await ask(gateway, deployment)
    used = (gateway.last.prompt_tokens or 0) + (gateway.last.output_tokens or 0)
    talk = [*ASK, {"role": "assistant", "content": first}, {"role": "user", "content": "Go on, please."}]
    options = {"model": deployment.name, "messages": talk, "temperature": 0, "max_tokens": 16}
    await gateway.openai.chat.completions.create(**options)
    assert gateway.last.handover is None and gateway.last.prefill is None
    assert (gateway.last.cached_tokens or 0) >= used - 4
    assert gateway.mover.moved == 1


@pytest.mark.parametrize("breaks", ["deleted", "flipped"])
async def test_a_lost_or_damaged_slot_file_costs_only_time(
    laboratory: Laboratory, gateway: Running, breaks: str
) -> None:
    deployment = await put(laboratory, laboratory.single("prefill", "box-1"), laboratory.single("decode"))
    await serve(gateway)
    good = await ask(gateway, deployment)
    gateway.mover.breaks = breaks  # type: ignore[attr-defined]
    assert await ask(gateway, deployment) == good
    assert gateway.last.handover_outcome == "fallback" and gateway.last.handover is not None
    gateway.mover.breaks = ""  # type: ignore[attr-defined]
    assert await ask(gateway, deployment) == good
    assert gateway.last.handover_outcome == "hit"
    await until_settled(gateway, deployment)


async def test_a_full_slot_folder_costs_only_time_and_leaves_no_cut_file(
    laboratory: Laboratory, gateway: Running
) -> None:
    require("the right to mount", os.geteuid() == 0, "run this test as root")
    deployment = await put(laboratory, laboratory.single("prefill", "box-1"), laboratory.single("decode"))
    await serve(gateway)
    master = await ManagedProcess.objects.aget(replica__role="prefill", kind=ManagedProcess.Kinds.MASTER)
    with tiny_disk(master.slot_folder):
        text = await ask(gateway, deployment)
        assert gateway.last.handover is not None and gateway.last.handover.step == Step.FALLBACK
        assert "save" in gateway.last.handover.reason
        await gateway.mover.close()  # type: ignore[attr-defined]
        assert not list(Path(master.slot_folder).iterdir())
    assert await ask(gateway, deployment) == text
    assert gateway.last.handover_outcome == "hit"


@contextmanager
def tiny_disk(folder: str) -> Iterator[None]:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_killed_or_frozen_worker_costs_only_the_requests_on_its_replica(
    laboratory: Laboratory, gateway: Running, kill: signal.Signals
) -> None:
    deployment = await put(laboratory, laboratory.split(), laboratory.single())
    await serve(gateway)
    suspects: list[int] = []
    gateway.gateway.suspect = lambda replica, reason: suspects.append(replica)
    worker = await ManagedProcess.objects.select_related("replica").aget(kind=ManagedProcess.Kinds.WORKER)
    assert worker.pid is not None
    streams = [asyncio.create_task(stream_text(gateway, deployment)) for _ in range(4)]
    while not all(one.has_started for one in gateway.gateway.clients) or len(gateway.gateway.clients) < 4:
        await asyncio.sleep(0.05)
    os.kill(worker.pid, kill)
    try:
        texts = await asyncio.gather(*streams)
    finally:
        if kill == signal.SIGSTOP:
            os.kill(worker.pid, signal.SIGKILL)
    cut = [text for text in texts if "stream_interrupted" in text]
    whole = [text for text in texts if text.endswith("data: [DONE]\n\n")]
    assert (len(cut), len(whole)) == (2, 2)
    assert not any("[DONE]" in text for text in cut)
    assert set(suspects) == {worker.replica_id}
    assert await ask(gateway, deployment)
    assert gateway.last.decode is not None and gateway.last.decode.replica != worker.replica_id
    await until_settled(gateway, deployment)


async def stream_text(gateway: Running, deployment: Deployment) -> str:
    target = upstream.Target("127.0.0.1", gateway.port, "k")
    body = {"model": deployment.name, "messages": ASK, "stream": True, "max_tokens": 150, "temperature": 0}
    stream = await upstream.open_stream(target, "/v1/chat/completions", body, upstream.Deadlines())
    text = b""
    while events := await stream.events():
        text += events
    stream.close()
    return text.decode()

"""What clients are told while a deployment starts, is replaced or has failed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import openai
import pytest
from django.utils import timezone

from serving.gateway.limits import Limits
from serving.gateway.routes import load_absent, load_wanted
from serving.models import Deployment, Replica
from tests.serving.gateway_server import ASK, MODEL, Running, ask, endpoint, running_gateway
from tests.serving.stub_replica import Stub
from tests.serving.test_pages import deployment

__all__ = ["deployment"]


@pytest.fixture
async def gateway() -> AsyncIterator[Running]:
    async with running_gateway(Limits(waiting=1)) as running:
        yield running


async def test_a_request_waits_for_a_deployment_that_starts(gateway: Running, stub: Stub) -> None:
    gateway.serve(is_starting=True)
    early = asyncio.create_task(ask(gateway))
    while not gateway.gateway.arriving:
        await asyncio.sleep(0.01)
    with pytest.raises(openai.InternalServerError, match="wait for a deployment that starts"):
        await ask(gateway)
    gateway.serve(endpoint(1, stub.port))
    assert await early == "Hello there!"
    assert gateway.gateway.arriving == 0


async def test_a_start_that_fails_or_takes_too_long_is_told(stub: Stub) -> None:
    async with running_gateway(Limits(queue_seconds=0.3)) as gateway:
        gateway.serve(is_starting=True)
        with pytest.raises(openai.InternalServerError, match="did not start within 0.3 s") as late:
            await ask(gateway)
        assert late.value.status_code == 503 and late.value.response.headers["retry-after"]


async def test_a_known_model_that_is_not_served_is_503_and_an_unknown_one_404(gateway: Running) -> None:
    gateway.gateway.routes.absent = frozenset({MODEL})
    with pytest.raises(openai.InternalServerError, match="not being served at the moment") as refusal:
        await ask(gateway)
    assert refusal.value.status_code == 503 and refusal.value.response.headers["retry-after"] == "10"
    with pytest.raises(openai.NotFoundError):
        await gateway.openai.chat.completions.create(model="unheard of", messages=ASK)


def test_what_failed_lately_or_is_being_replaced_is_known(deployment: Deployment) -> None:
    States = Deployment.States
    rows = Deployment.objects.filter(pk=deployment.pk)
    now = timezone.now()
    for state, ended_at, known in (
        (States.FAILED, now, True),
        (States.FAILED, now - timedelta(hours=2), False),
        (States.STOPPING, None, True),
        (States.STOPPED, now, False),
    ):
        rows.update(wanted=Deployment.Wanted.STOPPED, state=state, ended_at=ended_at)
        assert (deployment.name in load_absent()) == known, state


def test_routes_carry_why_a_replica_is_out(deployment: Deployment) -> None:
    Deployment.objects.filter(pk=deployment.pk).update(state=Deployment.States.STARTING)
    replica = deployment.replicas.get(role="decode")
    replica.state, replica.state_reason = Replica.States.FAILED, "None of its slots moved for 20 s."
    replica.save()
    (wanted,) = load_wanted()
    assert wanted.is_starting and wanted.down == {replica.pk: "None of its slots moved for 20 s."}


async def test_an_answer_cut_by_our_own_restart_says_what_was_found(gateway: Running, stub: Stub) -> None:
    stub.fault, stub.pause_seconds = "cut", 0.2
    gateway.serve(endpoint(1, stub.port))
    stream = await gateway.openai.chat.completions.create(model=MODEL, messages=ASK, stream=True)
    gateway.serve(down={1: "None of its slots moved for 20 s."})
    with pytest.raises(openai.APIError, match="taken out of service: None of its slots moved for 20 s"):
        async for _ in stream:
            pass
    assert "None of its slots moved for 20 s." in gateway.last.error
    gateway.serve(endpoint(1, stub.port))
    assert gateway.gateway.routes.find(MODEL).down == {}

"""What clients are told while a deployment starts, is replaced or has failed."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import openai
import pytest
from django.utils import timezone

from serving.core.balancer import Lease, Ticket
from serving.gateway.limits import Limits
from serving.gateway.routes import Endpoint, Wanted, load_absent, load_wanted
from serving.models import Deployment, Replica
from tests.serving.gateway_server import ASK, MODEL, Running, ask, endpoint, running_gateway
from tests.serving.stub_replica import Stub, running_stub
from tests.serving.test_gateway_chat import split_roles
from tests.serving.test_gateway_faults import until
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


def take_every_slot(gateway: Running) -> None:
    """Somebody else's answers go on in all slots in which answers are made."""
    balancer = gateway.balancer
    for backend in balancer.backends.values():
        for slot in list(backend.free) if backend.role != "prefill" else []:
            ticket = Ticket(f"long-{backend.replica}-{slot}", "somebody else", 0.0)
            balancer.open.add(ticket)
            backend.take(Lease(ticket, backend.replica, slot, 0.0, math.inf))


def next_plan(*endpoints: Endpoint, is_starting: bool = False) -> Wanted:
    """Another deployment of the same model."""
    return Wanted(2, MODEL, 0, 2048, False, endpoints, is_starting=is_starting)


async def test_what_waits_and_what_comes_while_a_plan_is_replaced_is_answered_by_the_next(stub: Stub) -> None:
    async with running_gateway() as gateway, running_stub(words=["From", " the", " next"]) as following:
        gateway.serve(endpoint(1, stub.port))
        take_every_slot(gateway)
        waiting = asyncio.create_task(ask(gateway))
        await until(lambda: gateway.balancer.waiting)
        gateway.gateway.routes.apply([next_plan(is_starting=True)])
        late = asyncio.create_task(ask(gateway))
        await until(lambda: gateway.gateway.arriving == 2)
        gateway.gateway.routes.apply([next_plan(endpoint(2, following.port))])
        assert await asyncio.gather(waiting, late) == ["From the next", "From the next"]
        assert stub.bodies == []
        assert [timeline.deployment for timeline in gateway.kept.timelines] == [2, 2]


async def test_a_prompt_computed_on_a_replaced_plan_leaves_nothing_behind(stub: Stub, tmp_path: Path) -> None:
    async with running_gateway() as gateway, running_stub() as decode, running_stub() as following:
        split_roles(gateway, stub, decode, tmp_path)
        take_every_slot(gateway)
        waiting = asyncio.create_task(ask(gateway))
        await until(lambda: gateway.balancer.waiting_in("decode"))
        assert list(tmp_path.rglob("*.kv"))
        gateway.gateway.routes.apply([next_plan(endpoint(3, following.port))])
        assert await waiting == "Hello there!"
        assert not list(tmp_path.rglob("*.kv"))
        row = gateway.last.row()
        assert (row.prefill_replica_id, row.decode_replica_id, row.handover) == (None, 3, "none")


async def test_texts_that_wait_are_embedded_by_the_next_plan(stub: Stub) -> None:
    async with running_gateway() as gateway, running_stub() as following:
        gateway.serve(endpoint(1, stub.port), makes_embeddings=True)
        take_every_slot(gateway)
        waiting = asyncio.create_task(gateway.openai.embeddings.create(model=MODEL, input=["a b", "c"]))
        await until(lambda: gateway.balancer.waiting)
        gateway.gateway.routes.apply([replace(next_plan(endpoint(2, following.port)), makes_embeddings=True)])
        assert [one.embedding for one in (await waiting).data] == [[2.0], [1.0]]
        assert stub.bodies == []


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
        (States.RUNNING, None, True),
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

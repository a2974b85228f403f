"""The gateway as it is started: keys, routes and rows in the database, pushes through Valkey, real replicas."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
import uvicorn
from asgiref.sync import sync_to_async
from django.contrib.auth import get_user_model
from django.utils import timezone

from accounts import services as accounts
from accounts.models import ApiKey, User
from inventory.models import LanguageModel
from serving import upstream
from serving.gateway.app import App
from serving.gateway.doorway import Connection
from serving.gateway.timeline import Timeline
from serving.models import Deployment, ManagedProcess, Replica, RequestSample, TrafficSample
from tests.serving.conftest import Laboratory
from tests.serving.stub_replica import Stub, running_stub

OTHER_QUESTION = [{"role": "user", "content": "Where do rivers begin, and where do they end?"}]
SDK_LOGS = ("openai", "httpx", "httpcore")  # the client of the test writes what it sends
ASK = [{"role": "user", "content": "Name three colours and say why you like them."}]


@asynccontextmanager
async def running_app() -> AsyncIterator[tuple[App, int]]:
    app = App()
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, http=Connection, proxy_headers=False, log_level="warning"))
    task = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        assert not task.done(), "the gateway did not start"
        await asyncio.sleep(0.02)
    try:
        yield app, listener.getsockname()[1]
    finally:
        server.should_exit = server.force_exit = True
        await task


def client(port: int, key: str) -> Any:
    return openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=key, max_retries=0)


async def until(condition: Callable[[], Any]) -> Any:
    asked = sync_to_async(condition)
    for _ in range(200):
        if answer := await asked():
            return answer
        await asyncio.sleep(0.05)
    raise AssertionError("it did not happen")


@sync_to_async
def deployed(stub: Stub) -> tuple[Deployment, ApiKey, str]:
    user: User = get_user_model().objects.create(username="ada")
    key, text = accounts.create_api_key(user, "laptop")
    model = LanguageModel.objects.create(
        name="m", architecture="llama", fingerprint="f" * 64, size_bytes=1, shape={}
    )
    stage = {"device": "box-1", "master": True}
    deployment = Deployment.objects.create(
        model=model,
        name="tiny",
        plan={"mode": "mixed", "replicas": [{"stages": [stage]}]},
        cluster={},
        context_tokens=2048,
        state=Deployment.States.RUNNING,
    )
    replica = Replica.objects.create(
        deployment=deployment,
        index=0,
        role="mixed",
        slots=2,
        state=Replica.States.READY,
        host="127.0.0.1",
        port=stub.port,
        api_key="secret",
    )
    ManagedProcess.objects.create(replica=replica, kind=ManagedProcess.Kinds.MASTER, marker="e2llm-1")
    return deployment, key, text


@pytest.mark.django_db(transaction=True)
async def test_keys_routes_and_rows_live_in_the_database(valkey_url: str) -> None:
    async with running_stub() as stub, running_app() as (_, port):
        deployment, key, text = await deployed(stub)
        user = await User.objects.aget(username="ada")
        internal = await sync_to_async(accounts.internal_key)(user)
        await asyncio.sleep(1.5)
        for one in (text, internal):
            answer = await client(port, one).chat.completions.create(model="tiny", messages=ASK)
            assert answer.choices[0].message.content == "Hello there!"
        row = await until(lambda: RequestSample.objects.filter(api_key=key).first())
        assert (row.deployment_id, row.outcome, row.output_tokens) == (deployment.pk, "ok", 3)
        assert 0 <= row.queued_seconds <= row.first_token_seconds <= row.total_seconds
        assert await until(lambda: TrafficSample.objects.filter(output_tokens__gt=0).first())


@pytest.mark.django_db(transaction=True)
async def test_a_revoked_key_ends_within_a_second_and_a_stopped_deployment_too(valkey_url: str) -> None:
    async with running_stub() as stub:
        deployment, key, text = await deployed(stub)
        async with running_app() as (_, port):
            assert [model.id async for model in client(port, text).models.list()] == ["tiny"]
            await sync_to_async(accounts.revoke_api_key)(key)
            await asyncio.sleep(1.5)
            with pytest.raises(openai.AuthenticationError):
                await client(port, text).models.list()
            user = await User.objects.aget(username="ada")
            internal = await sync_to_async(accounts.internal_key)(user)
            rows = Deployment.objects.filter(pk=deployment.pk)
            for change, refusal in (
                ({"wanted": Deployment.Wanted.STOPPED}, openai.InternalServerError),
                ({"state": Deployment.States.STOPPED}, openai.NotFoundError),
            ):
                await rows.aupdate(**change)
                await asyncio.sleep(1.5)
                with pytest.raises(refusal):
                    await client(port, internal).chat.completions.create(model="tiny", messages=ASK)


@pytest.mark.django_db(transaction=True)
async def test_what_people_ask_is_kept_nowhere(valkey_url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    secret = [{"role": "user", "content": "canary-7391"}]
    async with running_stub(words=["canary-answer"]) as stub, running_app() as (_, port):
        _, _, text = await deployed(stub)
        await asyncio.sleep(1.5)
        await client(port, text).chat.completions.create(model="tiny", messages=secret)
        stub.fault = "error_event"
        with pytest.raises(openai.InternalServerError):
            await client(port, text).chat.completions.create(model="tiny", messages=secret)
        await until(lambda: RequestSample.objects.count() == 2)
        rows = [str(vars(row)) async for row in RequestSample.objects.all()]
        ours = [record.getMessage() for record in caplog.records if not record.name.startswith(SDK_LOGS)]
        assert not any("canary" in line or text in line for line in [*rows, *ours])


@pytest.mark.django_db(transaction=True)
async def test_a_deployment_deleted_meanwhile_does_not_hold_back_other_rows(valkey_url: str) -> None:
    async with running_stub() as stub:
        deployment, key, text = await deployed(stub)
        async with running_app() as (app, port):
            gone, kept = [
                Timeline(f"req-{name}", timezone.now(), 0.0, deployment=number, ended=1.0)
                for name, number in (("gone", deployment.pk + 1), ("kept", deployment.pk))
            ]
            app.upkeep.recorder.add(gone)
            app.upkeep.recorder.add(kept)
            await until(lambda: RequestSample.objects.filter(request_id="req-kept").exists())
            assert not await RequestSample.objects.filter(request_id="req-gone").aexists()


async def plain_text(deployment: Deployment, role: str) -> str:
    """The answer of one server without the gateway and without a cache."""
    replica = await deployment.replicas.aget(role=role)
    assert replica.host and replica.port
    body = {"messages": ASK, "temperature": 0, "max_tokens": 24, "cache_prompt": False}
    target = upstream.Target(replica.host, replica.port, replica.api_key)
    answer = await upstream.call(target, "POST", "/v1/chat/completions", body, 120.0)
    return str(answer["choices"][0]["message"]["content"])


async def test_real_prompts_move_from_host_to_host_and_the_text_stays_the_same(
    laboratory: Laboratory, valkey_url: str
) -> None:
    deployment = await sync_to_async(laboratory.deploy)(
        laboratory.split("prefill"), laboratory.single("decode")
    )
    assert deployment.state == Deployment.States.RUNNING, deployment.state_reason
    user = await sync_to_async(get_user_model().objects.create)(username="ada")
    key = await sync_to_async(accounts.internal_key)(user)
    expected = await plain_text(deployment, "decode")
    async with running_app() as (app, port):

        def ask(messages: list[dict[str, str]]) -> Any:
            return client(port, key).chat.completions.create(
                model=deployment.name, messages=messages, temperature=0, max_tokens=24
            )

        # Alone: what is decoded beside others in one batch may round differently, and so say something else.
        answer = await ask(ASK)
        assert answer.choices[0].message.content == expected
        await asyncio.gather(*(ask(OTHER_QUESTION) for _ in range(2)))
        await app.upkeep.recorder.flush()
        rows = [row async for row in RequestSample.objects.all()]
        assert [(row.handover, row.handover_error) for row in rows] == [("hit", "")] * 3
        assert min(row.cached_tokens or 0 for row in rows) == 0, "the first prompt was new everywhere"
        assert all((row.handover_bytes or 0) > 100_000 and row.handover_seconds for row in rows)
        masters = [one async for one in ManagedProcess.objects.filter(kind=ManagedProcess.Kinds.MASTER)]
        assert await until(lambda: not any(slot_files(master) for master in masters))


def slot_files(master: ManagedProcess) -> list[Path]:
    return list(Path(master.slot_folder).iterdir())

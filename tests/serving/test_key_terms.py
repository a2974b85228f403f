"""What a key may do at the gateway: scopes, models, tokens per minute, requests at once; and what is written of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
from django.db import DatabaseError

from accounts import services as accounts
from accounts.core.key_terms import KeyTerms, Scope
from accounts.models import ApiKey, User
from serving.gateway.addresses import networks
from serving.gateway.keys import Caller, Keyring
from serving.gateway.limits import Limits
from serving.gateway.usage import KeyUsage
from tests.serving.gateway_server import MODEL, Running, endpoint, running_gateway
from tests.serving.stub_replica import Stub

ASK = [{"role": "user", "content": "one two three four five"}]


class Known:
    """Callers by the text of their keys."""

    def __init__(self, **callers: Caller) -> None:
        self.callers = callers

    def caller(self, authorization: str) -> Caller:
        return self.callers[authorization.removeprefix("Bearer ")]


def caller(number: int = 1, **terms: Any) -> Caller:
    return Caller(f"key {number}", number, 1, **{"max_concurrent": 0, **terms})


@pytest.fixture
async def gateway(stub: Stub) -> AsyncIterator[Running]:
    async with running_gateway() as running:
        running.serve(endpoint(1, stub.port))
        yield running


def client(gateway: Running, key: str) -> Any:
    address = f"http://127.0.0.1:{gateway.port}/v1"
    return openai.AsyncOpenAI(base_url=address, api_key=key, max_retries=0)


async def ask(gateway: Running, key: str, **options: Any) -> Any:
    return await client(gateway, key).chat.completions.create(model=MODEL, messages=ASK, **options)


async def status_of(gateway: Running, key: str, method: str, path: str, **body: Any) -> tuple[int, Any]:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{gateway.port}") as one:
        answer = await one.request(
            method, path, json=body or None, headers={"Authorization": f"Bearer {key}"}
        )
    return answer.status_code, answer.json()["error"] if answer.status_code >= 400 else None


ADDRESSES: list[tuple[Scope, str, str, dict[str, Any]]] = [
    (Scope.GENERATE, "POST", "/v1/chat/completions", {"model": MODEL, "messages": ASK}),
    (Scope.GENERATE, "POST", "/v1/completions", {"model": MODEL, "prompt": "x"}),
    (Scope.GENERATE, "POST", "/v1/messages", {"model": MODEL, "messages": ASK, "max_tokens": 5}),
    (Scope.EMBED, "POST", "/v1/embeddings", {"model": MODEL, "input": "x"}),
    (Scope.TOKENIZE, "POST", "/tokenize", {"model": MODEL, "content": "x"}),
    (Scope.TOKENIZE, "POST", "/v1/messages/count_tokens", {"model": MODEL, "messages": ASK}),
    (Scope.METRICS, "GET", "/metrics", {}),
]


@pytest.mark.parametrize(("scope", "method", "path", "body"), ADDRESSES)
async def test_a_key_without_the_scope_is_refused_with_403(
    gateway: Running, stub: Stub, scope: Scope, method: str, path: str, body: dict[str, Any]
) -> None:
    others = frozenset(Scope) - {scope}
    gateway.gateway.keys = Known(some=caller(scopes=others))
    status, error = await status_of(gateway, "some", method, path, **body)
    assert status == 403
    assert (error["type"], scope.value in error["message"]) == ("permission_error", True)
    assert stub.bodies == []


async def test_a_key_for_other_models_sees_and_uses_none_but_these(gateway: Running, stub: Stub) -> None:
    gateway.gateway.keys = Known(
        other=caller(models=frozenset({"other"})), this=caller(models=frozenset({MODEL}))
    )
    assert [one.id async for one in client(gateway, "this").models.list()] == [MODEL]
    assert [one.id async for one in client(gateway, "other").models.list()] == []
    with pytest.raises(openai.PermissionDeniedError) as refusal:
        await ask(gateway, "other")
    assert refusal.value.code == "model_not_allowed" and refusal.value.param == "model"
    assert (await status_of(gateway, "other", "GET", f"/v1/models/{MODEL}"))[0] == 403
    assert (await status_of(gateway, "other", "POST", "/tokenize", model=MODEL, content="x"))[0] == 403
    assert (await ask(gateway, "this")).choices


async def test_tokens_over_the_limit_are_429_with_the_time_to_come_back(gateway: Running) -> None:
    gateway.gateway.keys = Known(poor=caller(tokens_per_minute=12), rich=caller(2))
    raw = await client(gateway, "poor").chat.completions.with_raw_response.create(model=MODEL, messages=ASK)
    assert raw.headers["x-ratelimit-limit-tokens"] == "12"
    assert raw.headers["x-ratelimit-remaining-tokens"] == "7"
    with pytest.raises(openai.RateLimitError) as refusal:
        await ask(gateway, "poor")
    assert refusal.value.code == "rate_limit_exceeded"
    assert 1 <= int(refusal.value.response.headers["retry-after"]) <= 60
    assert (await ask(gateway, "rich")).choices
    with pytest.raises(openai.BadRequestError) as never:
        await client(gateway, "poor").chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "word " * 13}]
        )
    assert never.value.code == "prompt_over_key_limit"


@pytest.mark.parametrize(
    ("options", "fault", "tokens"),
    [({}, "", (5, 3)), ({"n": 2}, "", (10, 6)), ({}, "too_long", (5, 0))],
    ids=["answer", "two answers", "refused by the replica"],
)
async def test_what_a_key_used_is_what_the_replica_counted(
    gateway: Running, stub: Stub, options: dict[str, Any], fault: str, tokens: tuple[int, int]
) -> None:
    gateway.gateway.keys = Known(some=caller(tokens_per_minute=1000))
    stub.fault = fault
    try:
        await ask(gateway, "some", **options)
    except openai.BadRequestError:
        assert fault
    used = gateway.gateway.usage._used[1]
    assert (used.prompt_tokens, used.output_tokens) == tokens
    left = gateway.gateway.rates.left("key 1", 1000, gateway.gateway.clock())
    assert 1000 - sum(tokens) <= left < 1000 - sum(tokens) + 100


async def test_a_cut_stream_is_charged_for_what_came(gateway: Running, stub: Stub) -> None:
    gateway.gateway.keys = Known(some=caller())
    stub.fault, stub.fault_after, stub.words = "cut", 4, ["word"] * 20
    with pytest.raises(openai.APIError):
        async for _ in await ask(gateway, "some", stream=True):
            pass
    used = gateway.gateway.usage._used[1]
    assert used.prompt_tokens > 0 and 0 < used.output_tokens <= 4


async def test_requests_at_once_count_at_every_address_and_end_with_the_request(
    gateway: Running, stub: Stub
) -> None:
    gateway.gateway.keys = Known(some=caller(max_concurrent=1))
    stub.fault = "hang"
    waits = asyncio.create_task(ask(gateway, "some"))
    async with asyncio.timeout(60):
        while not stub.running:
            await asyncio.sleep(0.01)
    status, error = await status_of(gateway, "some", "POST", "/tokenize", model=MODEL, content="x")
    assert (status, error["code"]) == (429, "key_busy")
    assert gateway.gateway.usage._used[1].refusals == 1
    waits.cancel()
    async with asyncio.timeout(60):
        while gateway.gateway.callers.total:
            await asyncio.sleep(0.01)
    stub.fault = ""
    assert (await status_of(gateway, "some", "POST", "/tokenize", model=MODEL, content="x"))[0] == 200


async def test_addresses_behind_a_named_proxy_are_counted_apart(stub: Stub) -> None:
    stub.fault = "hang"
    limits = Limits(connections_per_address=1, proxies=networks("127.0.0.1"))
    async with running_gateway(limits) as gateway:
        gateway.serve(endpoint(1, stub.port))
        address = f"http://127.0.0.1:{gateway.port}"

        async def status(forwarded: str) -> int:
            async with httpx.AsyncClient(base_url=address) as one:
                return (await one.get("/healthz", headers={"X-Forwarded-For": forwarded})).status_code

        first = client(gateway, "k").with_options(default_headers={"X-Forwarded-For": "spoofed, 192.0.2.7"})
        waits = asyncio.create_task(first.chat.completions.create(model=MODEL, messages=ASK))
        async with asyncio.timeout(60):
            while not stub.running:
                await asyncio.sleep(0.01)
        assert await status("192.0.2.7") == 429
        assert await status("192.0.2.8") == 200
        assert await status("192.0.2.7, 192.0.2.8") == 200
        waits.cancel()


async def test_nobody_else_is_believed_about_an_address(stub: Stub) -> None:
    async with running_gateway(Limits(connections_per_address=1, proxies=networks("192.0.2.1"))) as gateway:
        gateway.serve(endpoint(1, stub.port))
        await ask(gateway, "k")
        assert gateway.gateway.visitors.total == 0


@pytest.mark.django_db
def test_terms_reach_the_gateway_and_its_figures_the_row(admin: User) -> None:
    terms = KeyTerms(scopes=("embed",), model_names=("tiny",), max_concurrent=2, tokens_per_minute=50)
    key, text = accounts.create_api_key(admin, "notebook", terms=terms)
    keyring = Keyring()
    keyring.load()
    known = keyring.caller(f"Bearer {text}")
    assert (known.scopes, known.models) == ({"embed"}, {"tiny"})
    assert (known.max_concurrent, known.tokens_per_minute) == (2, 50)
    usage = KeyUsage()
    usage.add(key.pk, 7, 3)
    usage.add(key.pk, refusals=1)
    usage.add(key.pk + 1, 1, 1)
    usage.add(None, 5, 5)
    usage.write()
    usage.write()
    key.refresh_from_db()
    assert (key.prompt_tokens, key.output_tokens, key.refusals) == (7, 3, 1)


@pytest.mark.django_db
def test_figures_stay_while_the_database_does_not_take_them(
    admin: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, _ = accounts.create_api_key(admin, "notebook")
    usage = KeyUsage()
    usage.add(key.pk, 7, 3)

    def locked(*_: object, **__: object) -> None:
        raise DatabaseError("database is locked")

    with monkeypatch.context() as patch, pytest.raises(DatabaseError):
        patch.setattr("serving.gateway.usage.transaction.atomic", locked)
        usage.write()
    usage.write()
    assert ApiKey.objects.get(pk=key.pk).prompt_tokens == 7

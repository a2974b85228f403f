"""A question from our own pages to one replica, and keys that may not choose."""

from __future__ import annotations

from collections.abc import AsyncIterator

import openai
import pytest

from serving.gateway.keys import Caller
from tests.serving.gateway_server import MODEL, Running, endpoint, running_gateway
from tests.serving.stub_replica import Stub

ASK = [{"role": "user", "content": "Say hello to all of us"}]


class KeysOfClients:
    """Every text is a stored key."""

    def caller(self, authorization: str) -> Caller:
        return Caller("key 1", 1, 1, 0)


@pytest.fixture
async def gateway(stub: Stub) -> AsyncIterator[Running]:
    async with running_gateway() as running:
        running.serve(endpoint(1, stub.port), endpoint(2, stub.port))
        yield running


async def ask(gateway: Running, replica: str) -> str:
    headers = {"X-E2LLM-Replica": replica}
    answer = await gateway.openai.chat.completions.create(model=MODEL, messages=ASK, extra_headers=headers)
    return str(answer.choices[0].message.content)


async def test_the_chosen_replica_answers_each_time(gateway: Running) -> None:
    for number in (1, 2, 2, 2, 2, 1, 1, 1):
        assert await ask(gateway, str(number)) == "Hello there!"
        decoder = gateway.last.decode
        assert decoder is not None and decoder.replica == number
        assert gateway.last.row().from_playground


async def test_a_replica_that_is_not_there_is_said_so(gateway: Running) -> None:
    with pytest.raises(openai.InternalServerError, match="chosen replica is not in service"):
        await ask(gateway, "7")
    with pytest.raises(openai.BadRequestError, match="no number of a replica"):
        await ask(gateway, "one")


async def test_a_replica_that_only_prefills_is_refused(gateway: Running, stub: Stub) -> None:
    gateway.serve(endpoint(3, stub.port, "prefill"), endpoint(4, stub.port, "decode"), handover=True)
    gateway.balancer.handover = True
    with pytest.raises(openai.BadRequestError, match="R3 computes prompts"):
        await ask(gateway, "3")


async def test_a_chosen_replica_that_fails_is_not_replaced_by_another(gateway: Running, stub: Stub) -> None:
    gateway.serve(endpoint(5, 1), endpoint(2, stub.port))
    with pytest.raises(openai.InternalServerError):
        await ask(gateway, "5")
    assert gateway.last.decode is not None and gateway.last.decode.replica == 5


async def test_a_retry_is_written_down_with_its_reason(gateway: Running, stub: Stub) -> None:
    gateway.serve(endpoint(5, 1), endpoint(2, stub.port))
    reasons: list[str] = []
    while not reasons:  # another conversation each time, or it would stay with the replica that knows it
        question = [{"role": "user", "content": f"Question {len(gateway.kept.timelines)}"}]
        await gateway.openai.chat.completions.create(model=MODEL, messages=question)
        await gateway.settled()
        reasons = [reason for one in gateway.kept.timelines if (reason := one.row().retry_reason)]
    assert reasons[0].startswith("R5 failed: ")


async def test_a_key_of_a_client_may_not_choose(gateway: Running) -> None:
    gateway.gateway.keys = KeysOfClients()
    with pytest.raises(openai.PermissionDeniedError, match="only the playground"):
        await ask(gateway, "1")


async def test_what_was_asked_is_kept_only_while_that_is_switched_on(gateway: Running) -> None:
    await ask(gateway, "1")
    assert gateway.last.prompt == ""
    gateway.gateway.keeps_prompts = True
    await ask(gateway, "1")
    assert "Say hello to all of us" in gateway.last.prompt

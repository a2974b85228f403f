"""The playground: what it says when nothing runs, and what it keeps."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.test import Client

from accounts.models import User
from serving import upstream
from serving.core import sse
from serving.core.fault_words import GATEWAY_LOST, cut_words, refusal_words
from serving.models import Deployment
from serving.services import playground
from serving.services.playground import Question
from tests.serving.gateway_server import ASK, MODEL, Running, endpoint
from tests.serving.stub_replica import Stub
from tests.serving.test_pages import deployment

__all__ = ["deployment"]

QUESTION = Question("tiny", [{"role": "user", "content": "Hello"}], 0.8, 8)
CHAT: list[dict[str, Any]] = [
    {"role": "user", "content": "my question"},
    {
        "role": "assistant",
        "content": "its answer",
        "facts": {"finish_reason": "stopped", "ttft_seconds": 0.5},
    },
]


def kept_chat(client: Client) -> int:
    body = {"id": None, "messages": CHAT}
    return int(client.post("/playground/keep/", body, content_type="application/json").json()["id"])


@pytest.mark.parametrize(("wanted", "state"), [("stopped", "stopped"), ("stopped", "stopping")])
def test_chats_can_be_read_while_nothing_runs(
    admin_client: Client, deployment: Deployment, wanted: str, state: str
) -> None:
    chat = kept_chat(admin_client)
    Deployment.objects.update(wanted=wanted, state=state)
    text = admin_client.get(f"/playground/?chat={chat}").content.decode()
    assert "data-read-only" in text
    assert "its answer" in text
    assert f'href="?chat={chat}"' in text
    assert ("is being stopped" in text) == (state == "stopping")


def test_what_stands_under_an_answer_is_kept_with_it(admin_client: Client, admin: User) -> None:
    odd = [{**CHAT[1], "facts": {"finish_reason": "stopped", "html": "<b>", "handover": {"a": 1}}}]
    body = {"id": None, "messages": [*CHAT, *odd]}
    chat = admin_client.post("/playground/keep/", body, content_type="application/json").json()["id"]
    kept = json.loads(admin.conversations.get(pk=chat).messages)
    assert [message["facts"] for message in kept] == [{}, CHAT[1]["facts"], {"finish_reason": "stopped"}]


@pytest.mark.parametrize(
    ("state", "words"),
    [("stopping", "is being stopped"), ("stopped", "was stopped"), ("starting", "is starting")],
)
def test_a_refusal_says_what_happens_to_the_deployment(
    transactional_db: None, deployment: Deployment, state: str, words: str
) -> None:
    Deployment.objects.update(state=state)
    refused = upstream.Declined(503, "no replica is in service", "server_error", {})
    assert words in async_to_sync(playground.why_refused)(QUESTION, refused)


@pytest.mark.parametrize(
    ("state", "restarts", "words"),
    [
        ("loading", 1, "is being started"),
        ("failed", 1, "is started again by itself"),
        ("failed", 9, "restart it on its deployment's page"),
        ("ready", 0, "restarted if it hangs"),
        ("stopping", 0, "is being stopped"),
    ],
)
def test_a_chosen_replica_that_gives_no_answer_is_named_with_what_happens_to_it(
    transactional_db: None, deployment: Deployment, state: str, restarts: int, words: str
) -> None:
    replica = deployment.replicas.first()
    assert replica is not None
    deployment.replicas.update(state=state, restarts=restarts)
    Deployment.objects.create(
        model=deployment.model, name="tiny", plan=deployment.plan, cluster={}, state="stopped",
        wanted="stopped", context_tokens=512,
    )  # fmt: skip
    refused = upstream.Declined(503, "the chosen replica is not in service", "", {"code": "no_replica_ready"})
    said = async_to_sync(playground.why_refused)(replace(QUESTION, replica=replica.pk), refused)
    assert said.startswith(f"{replica.label} of tiny #{deployment.pk} ") and words in said
    assert said.endswith("choose another replica, or wait.")


def test_the_deployment_that_is_to_run_is_named_and_not_a_later_one_that_was_called_off(
    transactional_db: None, deployment: Deployment
) -> None:
    Deployment.objects.update(state="starting")
    Deployment.objects.create(
        model=deployment.model, name="tiny", plan=deployment.plan, cluster={}, state="stopped",
        wanted="stopped", context_tokens=512,
    )  # fmt: skip
    refused = upstream.Declined(503, "no replica is in service", "server_error", {})
    assert f"#{deployment.pk} is starting" in async_to_sync(playground.why_refused)(QUESTION, refused)


def test_a_refusal_with_another_cause_keeps_its_words(transactional_db: None, deployment: Deployment) -> None:
    refused = upstream.Declined(429, "4 requests are waiting already", "rate_limit_error", {})
    assert async_to_sync(playground.why_refused)(QUESTION, refused) == "4 requests are waiting already"


def test_a_refusal_in_the_words_of_a_machine_is_put_into_those_of_a_person() -> None:
    silent = refusal_words("replica_timeout", "request req-1: the replica fell silent: no first token")
    assert "req-1" not in silent and "ask again in a minute" in silent
    busy = refusal_words("queue_timeout", "no slot became free within 900 s")
    assert busy.startswith("No slot became free within 900 s. Ask again when")
    assert refusal_words("invalid_request", "as it is") == "as it is"


async def streamed(port: int) -> str:
    """All that the page gets of one answer."""
    target = upstream.Target("127.0.0.1", port, "somebody")
    body = {"model": MODEL, "messages": ASK, "stream": True, "id_slot": 0}
    stream = await upstream.open_stream(
        target, playground.CHAT_PATH, body, playground.DEADLINES, playground.TIMING_HEADER
    )
    return b"".join([events async for events in playground.relay(stream)]).decode()


async def test_a_cut_answer_says_the_cause_and_what_to_do_and_keeps_its_figures(
    gateway: Running, stub: Stub
) -> None:
    stub.fault, stub.fault_after = "cut", 3
    gateway.serve(endpoint(1, stub.port))
    *_, last = sse.split((await streamed(gateway.port)).encode())
    told = sse.payload(last)
    assert told["error"]["message"] == cut_words("replica_failed")
    assert told["e2llm"]["request_id"] == gateway.last.request_id
    assert "the replica failed" in gateway.last.error, "the inspector has what was found"


async def test_a_gateway_that_ends_in_the_middle_is_named(stub: Stub) -> None:
    stub.fault, stub.fault_after = "cut", 3
    assert GATEWAY_LOST in await streamed(stub.port)


async def test_a_refused_question_can_be_looked_up_when_it_was_written_down(gateway: Running) -> None:
    with pytest.raises(upstream.Declined) as refusal:
        await streamed(gateway.port)
    assert playground.inspected_as(refusal.value) == gateway.last.request_id
    gateway.gateway.is_draining = True
    with pytest.raises(upstream.Declined) as refusal:
        await streamed(gateway.port)
    assert refusal.value.request_id and playground.inspected_as(refusal.value) == ""

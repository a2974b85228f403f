"""The playground: what it says when nothing runs, and what it keeps."""

from __future__ import annotations

import json
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.test import Client

from accounts.models import User
from serving import upstream
from serving.models import Deployment
from serving.services import playground
from tests.serving.test_pages import deployment

__all__ = ["deployment"]

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
    assert words in async_to_sync(playground.why_refused)("tiny", refused)


def test_a_refusal_with_another_cause_keeps_its_words(transactional_db: None, deployment: Deployment) -> None:
    refused = upstream.Declined(429, "4 requests are waiting already", "rate_limit_error", {})
    assert async_to_sync(playground.why_refused)("tiny", refused) == "4 requests are waiting already"

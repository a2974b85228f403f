"""Chats that the playground keeps for each person."""

from __future__ import annotations

import json
from typing import Any

from accounts.core.asked_number import asked_number
from accounts.models import User
from inventory.core.quantities import rate_text, seconds_text
from serving.models import Conversation
from serving.services.playground import BadQuestion, read_messages

MAX_KEPT = 100
MAX_CHARACTERS = 1_000_000
TITLE_CHARACTERS = 60
MAX_FACT_CHARACTERS = 200
MAX_FAULT_CHARACTERS = 500
SPEAKERS = {"system": "System prompt", "user": "You", "assistant": "Model"}
FACTS = (
    "request_id",
    "waited_seconds",
    "ttft_seconds",
    "tokens_per_second",
    "prompt_tokens",
    "completion_tokens",
    "prefill_replica",
    "decode_replica",
    "handover",
    "cached_tokens",
    "finish_reason",
    "continued_from",
)


def of(user: User) -> list[Conversation]:
    """The person's chats, newest first, without what was said in them."""
    return list(user.conversations.defer("messages")[:MAX_KEPT])


def messages_of(user: User, conversation_id: int) -> list[dict[str, Any]]:
    """What was said; empty when the chat is not there or is somebody else's."""
    found = user.conversations.filter(pk=conversation_id).first()
    return list(json.loads(found.messages)) if found else []


def keep(user: User, content: bytes) -> Conversation:
    """Save a chat as it stands now: a new one, or over the one whose id the page sends."""
    try:
        given = json.loads(content)
        messages = said(given["messages"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadQuestion(f"The chat could not be read: {error!r}.") from None
    text = json.dumps(messages)
    if not messages or len(text) > MAX_CHARACTERS:
        raise BadQuestion(f"A chat that is kept has 1 to {MAX_CHARACTERS} characters.")
    found = user.conversations.filter(pk=asked_number(str(given.get("id")))).first() or Conversation(
        user=user
    )
    found.title = title_of(messages)
    found.messages = text
    found.save()
    forget_oldest(user)
    return found


def said(given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages with what is shown at them; an answer that was asked for again has the others beside it."""
    found = []
    for message, one in zip(read_messages(given), given, strict=True):
        kept: dict[str, Any] = {**message, "facts": facts_of(one.get("facts"))}
        if one.get("fault"):
            kept["fault"] = str(one["fault"])[:MAX_FAULT_CHARACTERS]
        if others := [said(tail) for tail in one.get("others") or () if tail]:
            kept |= {"others": others, "place": min(max(int(one["place"]), 0), len(others))}
        found.append(kept)
    return found


def facts_of(given: dict[str, Any] | None) -> dict[str, str | float]:
    """What stands under an answer, as far as the page may say it."""
    known = {name: (given or {}).get(name) for name in FACTS}
    return {
        name: value[:MAX_FACT_CHARACTERS] if isinstance(value, str) else value
        for name, value in known.items()
        if isinstance(value, str | int | float)
    }


def title_of(messages: list[dict[str, Any]]) -> str:
    first: str = next((message["content"] for message in messages if message["role"] == "user"), "Chat")
    line = " ".join(first.split())
    return line if len(line) <= TITLE_CHARACTERS else line[: TITLE_CHARACTERS - 1] + "…"


def as_json(chat: Conversation) -> dict[str, Any]:
    return {
        "title": chat.title,
        "saved_at": chat.updated_at.isoformat(),
        "messages": json.loads(chat.messages),
    }


def as_markdown(chat: Conversation) -> str:
    """What was said, with a heading for each turn and the figures under each answer."""
    parts = [f"# {chat.title}"]
    for message in json.loads(chat.messages):
        parts.append(f"## {SPEAKERS[message['role']]}\n\n{message['content']}")
        if figures := figures_text(message.get("facts") or {}):
            parts.append(f"*{figures}*")
    return "\n\n".join(parts) + "\n"


def figures_text(facts: dict[str, Any]) -> str:
    ways = list(
        dict.fromkeys(facts[name] for name in ("prefill_replica", "decode_replica") if facts.get(name))
    )
    if facts.get("continued_from") and ways:
        ways = [f"{facts['continued_from']}, then {ways[0]}", *ways[1:]]
    parts = [
        *(
            [f"first token after {seconds_text(facts['ttft_seconds'])}"]
            if is_number(facts, "ttft_seconds")
            else []
        ),
        *([rate_text(facts["tokens_per_second"])] if is_number(facts, "tokens_per_second") else []),
        *([" → ".join(ways)] if ways else []),
    ]
    return ", ".join(parts)


def is_number(facts: dict[str, Any], name: str) -> bool:
    return isinstance(facts.get(name), int | float)


def forget(user: User, conversation_id: int) -> None:
    user.conversations.filter(pk=conversation_id).delete()


def forget_oldest(user: User) -> None:
    kept = user.conversations.values_list("pk", flat=True)[:MAX_KEPT]
    user.conversations.exclude(pk__in=list(kept)).delete()

"""An answer that was cut and is asked to go on: its beginning is the end of the prompt, the rest is plain text."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from serving.core import sse
from serving.core.body import BadRequest
from serving.core.openai import COMPLETION_FIELDS, COMPLETION_PATH, Generation

UNSUPPORTED = "continue_unsupported"
TOKENS_AROUND = 16  # what a tokenizer may add before and after a text


def resumed(request: Generation, rendered: str) -> Generation:
    """The plain completion that gives the rest of the answer; `rendered` is the chat as its template makes it.

    BadRequest when the template closes the last message: what came after it would be a new answer.
    """
    text = request.continues
    if not rendered.endswith(text.strip()):
        raise BadRequest(
            "the chat template of this model closes the last message, so the answer cannot be continued; "
            "ask again from the start",
            "continue_final_message",
            UNSUPPORTED,
        )
    prompt = rendered if rendered.endswith(text) else rendered + text[len(text.rstrip()) :]
    kept = {name: request.body[name] for name in COMPLETION_FIELDS if name in request.body}
    return replace(
        request,
        path=COMPLETION_PATH,
        body={"model": request.model, "prompt": prompt, **kept},
        token_bound=len(prompt.encode()) + TOKENS_AROUND,
    )


def chat_event(event: bytes) -> bytes:
    """An event of a plain completion as one of a chat."""
    if sse.is_done(event):
        return event
    value = sse.payload(event)
    if "error" in value:
        return event
    choices = [chat_choice(choice) for choice in value.get("choices", [])]
    return sse.event({**value, "object": "chat.completion.chunk", "choices": choices})


def chat_choice(choice: dict[str, Any]) -> dict[str, Any]:
    delta = {"content": choice["text"]} if choice.get("text") else {}
    return {"index": choice["index"], "delta": delta, "finish_reason": choice.get("finish_reason")}

"""The rest of an answer that was cut: asked of a replica as plain text, given to the client as a chat."""

from __future__ import annotations

from serving import upstream
from serving.core import sse
from serving.core.body import BadRequest
from serving.core.continuing import UNSUPPORTED, chat_event, resumed
from serving.core.openai import Generation
from serving.gateway.answer import Answer
from serving.gateway.errors import ApiError, bad_request
from serving.gateway.prompt import render
from serving.gateway.routes import Endpoint


async def resume(request: Generation, endpoint: Endpoint, timeout_seconds: float) -> Generation:
    """The request that gives the rest, or a 400 when the model's chat template cannot leave a message open."""
    try:
        return resumed(request, await render(request, endpoint, timeout_seconds))
    except BadRequest as error:
        raise bad_request(error) from error
    except upstream.Declined as error:
        if error.status >= 500:
            raise
        raise ApiError(
            400, UNSUPPORTED, f"this answer cannot be continued: {error}", param="continue_final_message"
        ) from error


class Resumed:
    """Takes the events of a plain completion for an answer that knows those of a chat."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.is_done = False

    async def feed(self, events: bytes) -> None:
        await self.answer.feed(b"".join(chat_event(event) for event in sse.split(events)))
        self.is_done = self.answer.is_done

    def take(self, events: bytes) -> bool:
        return self.answer.take(b"".join(chat_event(event) for event in sse.split(events)))

    def restart(self) -> None:
        self.answer.restart()

    async def finish(self) -> None:
        await self.answer.finish()

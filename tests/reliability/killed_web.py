"""The pages, which are killed when a form was carried out and before a byte of the answer is sent."""

from __future__ import annotations

import os
import signal
from typing import Any

from e2llm_web.asgi import application as site


async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
    async def answer(message: dict[str, Any]) -> None:
        if scope.get("method") == "POST" and message["type"] == "http.response.start":
            os.kill(os.getpid(), signal.SIGKILL)
        await send(message)

    await site(scope, receive, answer)

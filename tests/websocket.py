"""A browser's end of a websocket, straight into the ASGI application (channels' own would need daphne)."""

import json
from typing import Any

from asgiref.sync import sync_to_async
from asgiref.testing import ApplicationCommunicator
from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.sessions.backends.db import SessionStore

from accounts.models import User
from e2llm_web.asgi import application

ANSWER_SECONDS = 10.0


class Socket:
    def __init__(self, path: str, user: User | None = None, origin: str = "http://localhost") -> None:
        self.path = path
        self.user = user
        self.origin = origin
        self.messages = 0  # received
        self._unread: list[Any] = []

    async def open(self) -> bool:
        """True when the handshake was accepted."""
        headers = [(b"host", b"localhost"), (b"origin", self.origin.encode())]
        if self.user is not None:
            headers.append((b"cookie", (await sync_to_async(session_cookie)(self.user)).encode()))
        scope = {
            "type": "websocket",
            "path": self.path,
            "query_string": b"",
            "headers": headers,
            "subprotocols": [],
        }
        self.communicator = ApplicationCommunicator(application, scope)
        await self.communicator.send_input({"type": "websocket.connect"})
        return (await self.communicator.receive_output(ANSWER_SECONDS))["type"] == "websocket.accept"

    async def receive(self) -> Any:
        """The next event; a message may hold several."""
        if not self._unread:
            message = await self.receive_message()
            self._unread = message["items"] if message["type"] == "delta" else [message]
        return self._unread.pop(0)

    async def receive_message(self) -> Any:
        message = await self.communicator.receive_output(ANSWER_SECONDS)
        assert message["type"] == "websocket.send", message
        self.messages += 1
        return json.loads(message["text"])

    async def close(self) -> None:
        await self.communicator.send_input({"type": "websocket.disconnect", "code": 1000})
        await self.communicator.wait(ANSWER_SECONDS)


def session_cookie(user: User) -> str:
    session = SessionStore()
    session[SESSION_KEY] = str(user.pk)
    session[BACKEND_SESSION_KEY] = settings.AUTHENTICATION_BACKENDS[-1]
    session[HASH_SESSION_KEY] = user.get_session_auth_hash()
    session.save()
    return f"{settings.SESSION_COOKIE_NAME}={session.session_key}"

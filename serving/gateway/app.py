"""The gateway as an ASGI application of its own: `uvicorn serving.gateway.app:app`."""

from __future__ import annotations

import logging
import os
import secrets

import django
from django.conf import settings

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "e2llm_web.settings")
django.setup()

from serving.gateway.api import serve  # noqa: E402 - the models of these exist only after the set-up
from serving.gateway.doorway import raise_file_limit  # noqa: E402
from serving.gateway.gateway import Gateway, settle_memory  # noqa: E402
from serving.gateway.http import Message, Receive, Send  # noqa: E402
from serving.gateway.keys import Keyring  # noqa: E402
from serving.gateway.lease import Lease  # noqa: E402
from serving.gateway.limits import from_environment  # noqa: E402
from serving.gateway.samples import Recorder  # noqa: E402
from serving.gateway.transfer import Transfer  # noqa: E402
from serving.gateway.upkeep import Upkeep  # noqa: E402

log = logging.getLogger(__name__)


class App:
    """Starts and stops with its server, and hands it every request."""

    def __init__(self) -> None:
        raise_file_limit()
        limits = from_environment()
        name = f"gateway-{secrets.token_hex(4)}"
        keyring, recorder = Keyring(), Recorder(name)
        transfer = Transfer(limits.move_seconds)
        self.gateway = Gateway(limits, keyring, transfer, recorder)
        lease = Lease(name, settings.GATEWAY_URL)
        self.gateway.refusal = lease.refusal
        self.upkeep = Upkeep(self.gateway, keyring, recorder, transfer, lease)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.live(receive, send)
        elif scope["type"] == "http":
            await serve(self.gateway, scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    async def live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await self.upkeep.start()
                settle_memory()
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                self.gateway.is_draining = True
                await self.upkeep.stop()
                await send({"type": "lifespan.shutdown.complete"})
                return


app = App()

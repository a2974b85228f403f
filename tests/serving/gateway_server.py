"""The real gateway on a free port, with keys and routes that a test hands it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from openai import AsyncOpenAI

from serving.core.balancer import Balancer
from serving.core.commands import Role
from serving.core.handover import HandoverBroken
from serving.gateway.api import serve
from serving.gateway.doorway import Connection, Doorkeeper
from serving.gateway.errors import ApiError
from serving.gateway.gateway import Gateway
from serving.gateway.http import Message, Receive, Send
from serving.gateway.keys import Caller
from serving.gateway.limits import Limits
from serving.gateway.routes import Endpoint, Wanted
from serving.gateway.timeline import Timeline
from serving.upstream import Target

MODEL = "tiny"
DEPLOYMENT = 1
ASK = [{"role": "user", "content": "Say hello to all of us"}]


class Keys:
    """Every text is a key of its own, but for one."""

    def caller(self, authorization: str) -> Caller:
        text = authorization.removeprefix("Bearer ")
        if text in ("", "wrong"):
            raise ApiError(401, "invalid_api_key", "not known")
        return Caller(text, None, 1, max_concurrent=1 if text == "single" else 0)


class FolderMover:
    """Moves slot files between folders of this machine."""

    def __init__(self) -> None:
        self.moved = 0
        self.truncates = False

    async def pull(self, source: Endpoint, destination: Endpoint, filename: str) -> int:
        content = (Path(source.slot_folder) / filename).read_bytes()
        if self.truncates:
            content = content[:-1]
        (Path(destination.slot_folder) / filename).write_bytes(content)
        self.moved += 1
        return len(content)

    def remove(self, endpoint: Endpoint, filename: str) -> None:
        (Path(endpoint.slot_folder) / filename).unlink(missing_ok=True)


class LostMover(FolderMover):
    """A network between the hosts that is down."""

    async def pull(self, source: Endpoint, destination: Endpoint, filename: str) -> int:
        raise HandoverBroken("curl on the decode host: connection refused")


class Kept:
    def __init__(self) -> None:
        self.timelines: list[Timeline] = []

    def add(self, timeline: Timeline) -> None:
        self.timelines.append(timeline)


@dataclass
class Running:
    """A gateway that serves, and what a test looks at."""

    gateway: Gateway
    mover: FolderMover
    kept: Kept
    port: int
    openai: Any  # the SDK's overloads do not take options from a test's parameters

    @property
    def balancer(self) -> Balancer:
        return self.gateway.routes.by_deployment[DEPLOYMENT].balancer

    @property
    def last(self) -> Timeline:
        return self.kept.timelines[-1]

    def serve(
        self,
        *endpoints: Endpoint,
        handover: bool = False,
        context_tokens: int = 2048,
        makes_embeddings: bool = False,
        is_starting: bool = False,
        down: dict[int, str] | None = None,
    ) -> None:
        wanted = Wanted(
            DEPLOYMENT,
            MODEL,
            0,
            context_tokens,
            handover,
            endpoints,
            makes_embeddings,
            is_starting,
            down or {},
        )
        self.gateway.routes.apply([wanted])

    async def settled(self) -> None:
        """Until no slot is held, no request is open and none waits for confirmation."""
        for _ in range(200):
            self.gateway.pump()
            if not self.balancer.open and not any(one.running for one in self.balancer.backends.values()):
                return
            await asyncio.sleep(0.05)
        raise AssertionError("a slot or a place in the queue leaked")


def endpoint(
    number: int,
    port: int,
    role: Role = "mixed",
    slots: int = 2,
    folder: Path | None = None,
    host: str = "127.0.0.1",
) -> Endpoint:
    where = str(folder) if folder else ""
    target = Target(host, port, "secret")
    return Endpoint(number, role, slots, f"R{number}", target, number, where, folder is not None, 0)


@asynccontextmanager
async def running_gateway(
    limits: Limits | None = None, mover: FolderMover | None = None
) -> AsyncIterator[Running]:
    mover, kept, limits = mover or FolderMover(), Kept(), limits or Limits()
    gateway = Gateway(limits, Keys(), mover, kept)
    door = type("Door", (Connection,), {"keeper": Doorkeeper(limits)})

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        await serve(gateway, scope, receive, send)

    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    config = uvicorn.Config(app, http=door, proxy_headers=False, lifespan="off", log_level="warning")
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    port = listener.getsockname()[1]
    client = AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="somebody", max_retries=0)
    try:
        while not server.started:
            await asyncio.sleep(0.01)
        yield Running(gateway, mover, kept, port, client)
    finally:
        await client.close()
        server.should_exit = server.force_exit = True
        await task


async def ask(running: Running, **options: object) -> str:
    """The text of one whole answer."""
    answer = await running.openai.chat.completions.create(model=MODEL, messages=ASK, **options)
    return str(answer.choices[0].message.content)

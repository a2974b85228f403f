"""The gateway as it is, with one route and one key that no database holds.

python -m benchmarks.bare_gateway PORT SLOTS UPSTREAM_PORT [UPSTREAM_PORT ...]
"""

from __future__ import annotations

import os
import sys
import tempfile
import time

import django
import uvicorn

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "e2llm_web.settings")
os.environ.setdefault("E2LLM_DATA", tempfile.mkdtemp(prefix="e2llm-benchmark-"))
django.setup()

from serving.gateway.api import serve  # noqa: E402 - the models of these exist only after the set-up
from serving.gateway.doorway import Connection  # noqa: E402
from serving.gateway.gateway import Gateway, settle_memory  # noqa: E402
from serving.gateway.handing import Mover  # noqa: E402
from serving.gateway.http import Message, Receive, Send  # noqa: E402
from serving.gateway.keys import Caller  # noqa: E402
from serving.gateway.limits import Limits  # noqa: E402
from serving.gateway.routes import Endpoint, Wanted  # noqa: E402
from serving.gateway.samples import REQUESTS_PER_SECOND  # noqa: E402
from serving.gateway.timeline import Timeline  # noqa: E402
from serving.gateway.transfer import Transfer  # noqa: E402
from serving.upstream import Target  # noqa: E402

ADDRESS = "127.0.0.1"
MODEL = "bench"


class Anyone:
    """Takes every key."""

    def caller(self, authorization: str) -> Caller:
        return Caller(authorization, None, 1, 0)


class Forgets:
    """Makes the rows that the recorder would, of at most as many requests a second, and drops them."""

    def __init__(self) -> None:
        self.second = 0
        self.rows = 0

    def add(self, timeline: Timeline) -> None:
        second = int(time.monotonic())
        if second != self.second:
            self.second, self.rows = second, 0
        if self.rows < REQUESTS_PER_SECOND:
            self.rows += 1
            timeline.row()


def main(port: int, slots: int, upstream_ports: list[int]) -> None:
    replicas = tuple(
        Endpoint(number, "mixed", slots, f"M{number}", Target(ADDRESS, one, "secret"), None, "", False, 0)
        for number, one in enumerate(upstream_ports, 1)
    )
    run(port, Wanted(1, MODEL, 0, 10**6, False, replicas), Transfer(Limits().move_seconds))


def run(port: int, wanted: Wanted, mover: Mover) -> None:
    gateway = Gateway(Limits(), Anyone(), mover, Forgets())
    gateway.routes.apply([wanted])

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        await serve(gateway, scope, receive, send)

    settle_memory()
    uvicorn.run(
        app,
        host=ADDRESS,
        port=port,
        http=Connection,
        proxy_headers=False,
        server_header=False,
        lifespan="off",
        log_level="error",
        access_log=False,
        backlog=1024,
    )


if __name__ == "__main__":
    own_port, slots_each, *upstreams = map(int, sys.argv[1:])
    main(own_port, slots_each, upstreams)

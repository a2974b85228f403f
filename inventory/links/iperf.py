"""iperf3 between two hosts: a listener for one test, bound to its host's address and ended by it, and a client."""

from __future__ import annotations

import asyncio

from inventory.core.iperf import received_rates
from inventory.core.link_matrix import LinkError
from inventory.probe import free_port
from inventory.remote import Connection

TOOL = "iperf3"
# TCP is up to speed within the first interval, which the median leaves out.
TEST_SECONDS, INTERVAL_SECONDS = 1, 0.2
CONNECT_MILLISECONDS = 3000
LISTENER_SECONDS = 20
CLIENT_SECONDS = 15.0
TRIES, RETRY_SECONDS = 20, 0.15
NOT_YET = "Connection refused"
# Where the probe finds it, and a log-in over SSH does not
ON_PATH = ["/bin/sh", "-c", 'PATH=$PATH:/usr/local/bin:/opt/homebrew/bin; export PATH; exec "$@"', "sh", TOOL]


async def rates(listener: Connection, address: str, client: Connection) -> tuple[list[float], list[float]]:
    """Bytes per second from client to listener and back, each as often as was counted; LinkError says why not."""
    return await _test(listener, address, client), await _test(listener, address, client, "-R")


async def _test(listener: Connection, address: str, client: Connection, *direction: str) -> list[float]:
    common = ["-J", "-i", f"{INTERVAL_SECONDS:g}", "-p", str(await free_port(listener))]
    lasting = ["-t", str(TEST_SECONDS), "--connect-timeout", str(CONNECT_MILLISECONDS)]
    listen = [*ON_PATH, "-s", "-1", "-B", address, *common]
    test = [*ON_PATH, "-c", address, *common, *lasting, "--get-server-output", *direction]
    async with listener.hold_bounded(listen, LISTENER_SECONDS):
        for _ in range(TRIES):
            done = await client.run(test, timeout_seconds=CLIENT_SECONDS)
            if NOT_YET not in done.stdout + done.stderr:
                return received_rates(done.stdout or done.stderr)
            await asyncio.sleep(RETRY_SECONDS)
    raise LinkError(f"{TOOL} did not listen on {address} of {listener.name}")

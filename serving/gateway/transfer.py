"""Moves slot files between hosts: the decode host pulls, so that no byte of them passes through the gateway."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import AsyncExitStack

from inventory.models import Device
from inventory.remote import Completed, Connection, HostUnreachable, RemoteError, connect
from serving import upstream
from serving.core.handover import HandoverBroken
from serving.gateway.routes import Endpoint

log = logging.getLogger(__name__)

CURL_MISSING = 127
MOVES_PER_SOURCE = 2  # more at once would only share the same network card
LIFE_MINUTES = 10  # of a slot file; one that is older was left by a gateway that was killed


class Transfer:
    """One kept SSH connection per host: logging in takes longer than moving a prompt."""

    def __init__(self, move_seconds: float) -> None:
        self.move_seconds = move_seconds
        self._hosts: dict[int, Host] = {}
        self._sources: dict[int, asyncio.Semaphore] = {}
        self._removals: set[asyncio.Task[None]] = set()

    def host(self, device: int) -> Host:
        return self._hosts.setdefault(device, Host(device))

    async def open(self, device: int) -> None:
        """Log in ahead of the first request; a host that does not answer is left for that request to report."""
        try:
            await self.host(device).connection()
        except RemoteError as error:
            log.warning("no connection to device %s for hand-overs: %s", device, error)

    async def pull(self, source: Endpoint, destination: Endpoint, filename: str) -> int:
        """Bring a slot file to the destination's slot folder; the bytes that arrived."""
        path = f"{destination.slot_folder}/{filename}"
        if destination.device is None:
            raise HandoverBroken("the decode host is no longer registered")
        if source.slot_folder == destination.slot_folder and source.device == destination.device:
            raise HandoverBroken("two replicas share a slot folder")
        card = self._sources.setdefault(source.replica, asyncio.Semaphore(MOVES_PER_SOURCE))
        config = curl_config(source, filename, path, self.move_seconds)
        argv = ["curl", "--config", "-"]
        try:
            async with card:
                done = await self.host(destination.device).run(argv, config, self.move_seconds + 10.0)
                if done.exit_status == CURL_MISSING:
                    return await self._carry(source, destination.device, filename, path)
        except RemoteError as error:
            raise HandoverBroken(f"the decode host could not be told to fetch the file: {error}") from error
        if not done.succeeded:
            raise HandoverBroken(f"curl on the decode host: {done.stderr.strip()[-200:]}")
        return int(done.stdout)

    def remove(self, endpoint: Endpoint, filename: str) -> None:
        """Delete a slot file in the background: it holds somebody's prompt."""
        if endpoint.device is None:
            return
        task = asyncio.create_task(self._remove(endpoint.device, f"{endpoint.slot_folder}/{filename}"))
        self._removals.add(task)
        task.add_done_callback(self._removals.discard)

    async def sweep(self, endpoint: Endpoint) -> None:
        """Delete slot files that nobody is going to delete."""
        if endpoint.device is None:
            return
        old = ["-name", "*.kv", "-mmin", f"+{LIFE_MINUTES}", "-delete"]
        try:
            await self.host(endpoint.device).run(["find", endpoint.slot_folder, *old], b"", 30.0)
        except RemoteError as error:
            log.warning("old slot files in %s stay: %s", endpoint.slot_folder, error)

    async def close(self) -> None:
        await asyncio.gather(*self._removals, return_exceptions=True)
        for host in self._hosts.values():
            await host.close()

    async def _carry(self, source: Endpoint, device: int, filename: str, path: str) -> int:
        """Through the gateway after all, for a decode host without curl."""
        content = await upstream.download(source.target, f"/{filename}", self.move_seconds)
        connection = await self.host(device).connection()
        await connection.write_file(path, content, timeout_seconds=self.move_seconds)
        return len(content)

    async def _remove(self, device: int, path: str) -> None:
        try:
            await self.host(device).run(["rm", "-f", "--", path], b"", 30.0)
        except RemoteError as error:
            log.warning("the slot file %s was not removed: %s", path, error)


class Host:
    """The kept connection of one device, opened again after it broke."""

    def __init__(self, device: int) -> None:
        self.device = device
        self._lock = asyncio.Lock()
        self._connection: Connection | None = None
        self._stack = AsyncExitStack()

    async def connection(self) -> Connection:
        async with self._lock:
            if self._connection is None:
                device = await Device.objects.select_related("identity").aget(pk=self.device)
                self._connection = await self._stack.enter_async_context(connect(device))
            return self._connection

    async def run(self, argv: list[str], stdin: bytes, timeout_seconds: float) -> Completed:
        """Run a command that may run twice: a kept connection shows only in use that it broke meanwhile."""
        try:
            return await self._run(argv, stdin, timeout_seconds)
        except HostUnreachable:
            return await self._run(argv, stdin, timeout_seconds)

    async def _run(self, argv: list[str], stdin: bytes, timeout_seconds: float) -> Completed:
        connection = await self.connection()
        try:
            return await connection.run(argv, stdin=stdin, timeout_seconds=timeout_seconds)
        except RemoteError:
            await self.close()
            raise

    async def close(self) -> None:
        async with self._lock:
            self._connection = None
            stack, self._stack = self._stack, AsyncExitStack()
        await stack.aclose()


def curl_config(source: Endpoint, filename: str, path: str, move_seconds: float) -> bytes:
    """Options for curl on stdin: on a command line every user of the host would see the key."""
    target = source.target
    options = {
        "url": f"http://{target.host}:{target.port}/{filename}",
        "header": f"Authorization: Bearer {target.api_key}",
        "output": path,
        "write-out": "%{size_download}",
        "proto": "=http",
        "noproxy": "*",
        "connect-timeout": "5",
        "max-time": f"{move_seconds:.0f}",
    }
    lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in options.items()]
    return "\n".join(["fail", "silent", "show-error", *lines, ""]).encode()

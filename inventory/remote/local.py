"""The machine that the dashboard runs on, as a device."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from inventory.remote.connection import HOLD_END_SECONDS, Connection, Tell, checked, timeout_text
from inventory.remote.errors import CommandTimedOut, RemoteError
from inventory.remote.reasons import reason
from inventory.remote.streams import ReportBytes, talk


class LocalConnection(Connection):
    """The machine that the dashboard runs on."""

    async def _execute(
        self,
        argv: Sequence[str],
        stdin: bytes | Path,
        timeout_seconds: float,
        report: ReportBytes | None = None,
    ) -> tuple[int, bytes, bytes]:
        words = [checked(word) for word in argv]
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                *words, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True, cwd=Path.home()
            )
        except OSError as error:
            return 127, b"", f"{words[0]}: {error.strerror}".encode()
        out, err = bytearray(), bytearray()
        try:
            async with asyncio.timeout(timeout_seconds):
                await talk((process.stdin, process.stdout, process.stderr), stdin, (out, err), report)
                status = await process.wait()
        except TimeoutError:
            raise CommandTimedOut(timeout_text(self.name, argv, timeout_seconds)) from None
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        return status, bytes(out), bytes(err)

    @asynccontextmanager
    async def hold(self, argv: Sequence[str]) -> AsyncIterator[Tell]:
        null = asyncio.subprocess.DEVNULL
        words = [checked(word) for word in argv]
        process = await asyncio.create_subprocess_exec(
            *words, stdin=asyncio.subprocess.PIPE, stdout=null, stderr=null, start_new_session=True
        )
        stdin = process.stdin
        assert stdin is not None, "piped"

        async def tell(line: str) -> None:
            try:
                stdin.write(f"{line}\n".encode())
                await stdin.drain()
            except OSError as error:
                raise RemoteError(f"{words[0]} on {self.name} ended early: {reason(error)}.") from None

        try:
            yield tell
        finally:
            stdin.close()
            with suppress(TimeoutError):
                async with asyncio.timeout(HOLD_END_SECONDS):
                    await process.wait()
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()

    @asynccontextmanager
    async def tunnel(self, host_port: int) -> AsyncIterator[int]:
        yield host_port

"""A replica that does what a test says: the same addresses and events as llama-server, with faults on demand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HEAD = "HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nConnection: close\r\n{length}\r\n"
CHUNKED = "Transfer-Encoding: chunked\r\n"


@dataclass
class Stub:
    """How the replica behaves, and what it saw."""

    alias: str = "e2llm-00000000feed"
    words: list[str] = field(default_factory=lambda: ["Hello", " there", "!"])
    deltas: list[dict[str, Any]] = field(default_factory=list)
    finish: str = "stop"
    pause_seconds: float = 0.0
    fault: str = ""  # refuse | crash | hang | stall | cut | error_event | busy | too_long
    fault_after: int = 2
    slot_folder: Path | None = None
    forgets_restored: bool = False
    saves_tokens: bool = True
    prefix_cached: int = 0
    answers_slots: bool = True
    closes_messages: bool = False
    props: dict[str, Any] = field(default_factory=dict)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    running: set[int] = field(default_factory=set)
    most_running: int = 0
    cancelled: int = 0
    restored: dict[int, int] = field(default_factory=dict)
    prompted: dict[int, int] = field(default_factory=dict)
    host: str = "127.0.0.1"
    port: int = 0
    server: asyncio.Server | None = None
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            line = (await reader.readline()).decode()
            length = 0
            while (header := (await reader.readline()).decode().strip()) != "":
                if header.lower().startswith("content-length:"):
                    length = int(header.split(":")[1])
            body = json.loads(await reader.readexactly(length) or b"{}")
            if not line:
                return writer.close()  # who connected left before it asked
            method, path, _ = line.split(" ")
            self.paths.append(f"{method} {path}")
            await self._answer(method, path, body, reader, writer)
        return writer.close()

    async def _answer(
        self,
        method: str,
        path: str,
        body: dict[str, Any],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        if path == "/apply-template":
            text = "".join(str(message["content"]) for message in body["messages"])
            await self._json(writer, {"prompt": f"{text}<end>" if self.closes_messages else text})
        elif path == "/tokenize":
            await self._json(writer, {"tokens": list(range(len(body["content"].split())))})
        elif path == "/props":
            await self._json(writer, self.props)
        elif path == "/v1/embeddings":
            await self._embed(body, writer)
        elif path == "/slots" and method == "GET":
            busy = [{"id": slot, "is_processing": True} for slot in self.running]
            await self._json(writer, busy)
        elif path.startswith("/slots/"):
            await self._slot(path, body, writer)
        elif path == "/completion":
            computed = len(body["prompt"]) - self.prefix_cached
            self.prompted[body["id_slot"]] = len(body["prompt"])
            end = {"content": "", "stop": True, "timings": {"prompt_n": computed}}
            await self._stream(body, reader, writer, [end])
        else:
            await self._stream(body, reader, writer, list(self._chunks(body)))

    async def _embed(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        self.bodies.append(body)
        if self.fault == "crash":
            return writer.transport.abort()
        if self.fault == "hang":
            await self.go_on.wait()
        count = len(body["input"].split())
        data = [{"object": "embedding", "index": 0, "embedding": [float(count)]}]
        return await self._json(writer, {"data": data, "usage": {"prompt_tokens": count}})

    def _chunks(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        prompt = sum(len(str(message["content"]).split()) for message in body["messages"])
        cached = 0 if self.forgets_restored else self.restored.pop(body["id_slot"], 0)
        name = f"chatcmpl-{len(self.bodies)}"
        head = {"id": name, "created": 1, "model": self.alias, "object": "chat.completion.chunk"}
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": None}]
        deltas += self.deltas or [{"content": word} for word in self.words]
        chunks = [
            {**head, "choices": [{"index": 0, "finish_reason": None, "delta": delta}]} for delta in deltas
        ]
        chunks.append({**head, "choices": [{"index": 0, "finish_reason": self.finish, "delta": {}}]})
        usage = {"prompt_tokens": prompt, "completion_tokens": len(self.words), "total_tokens": 0}
        timings = {
            "cache_n": cached,
            "prompt_n": prompt - cached,
            "prompt_ms": 250.0,
            "predicted_per_second": 50.0,
        }
        return [*chunks, {**head, "choices": [], "usage": usage, "timings": timings}]

    async def _stream(
        self,
        body: dict[str, Any],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        chunks: list[dict[str, Any]],
    ) -> None:
        self.bodies.append(body)
        slot = body["id_slot"]
        assert slot not in self.running, "a slot was given twice"
        self.running.add(slot)
        self.most_running = max(self.most_running, len(self.running))
        gone = asyncio.create_task(reader.read(1))
        try:
            await self._send(writer, chunks, gone)
        finally:
            gone.cancel()
            self.running.discard(slot)

    async def _send(
        self, writer: asyncio.StreamWriter, chunks: list[dict[str, Any]], gone: asyncio.Task[bytes]
    ) -> None:
        if self.fault == "crash":
            return writer.transport.abort()
        if self.fault in ("busy", "too_long"):
            status, kind = (
                (503, "unavailable_error") if self.fault == "busy" else (400, "exceed_context_size_error")
            )
            return await self._json(
                writer, {"error": {"code": status, "message": self.fault, "type": kind}}, status
            )
        if self.fault == "hang":
            await self._sleep_until(gone)
            return None
        writer.write(HEAD.format(status=200, kind="text/event-stream", length=CHUNKED).encode())
        for number, chunk in enumerate(chunks):
            if self.fault and number == self.fault_after and await self._break(writer, gone):
                return None
            await self._piece(
                writer,
                b"data: " + json.dumps(chunk, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n",
            )
            if self.pause_seconds and await self._paused(gone):
                return None
        if chunks[-1].get("stop") is None:
            await self._piece(writer, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return None

    async def _break(self, writer: asyncio.StreamWriter, gone: asyncio.Task[bytes]) -> bool:
        if self.fault == "cut":
            writer.transport.abort()
        elif self.fault == "error_event":
            error = {"error": {"code": 500, "message": "out of memory", "type": "server_error"}}
            await self._piece(writer, b"data: " + json.dumps(error, separators=(",", ":")).encode() + b"\n\n")
        elif self.fault == "stall":
            while not gone.done():
                await self._piece(writer, b":\n\n")
                await asyncio.sleep(0.02)
            self.cancelled += 1
        return True

    async def _paused(self, gone: asyncio.Task[bytes]) -> bool:
        await asyncio.wait([gone], timeout=self.pause_seconds)
        self.cancelled += gone.done()
        return gone.done()

    async def _sleep_until(self, gone: asyncio.Task[bytes]) -> None:
        wake = asyncio.create_task(self.go_on.wait())
        await asyncio.wait([gone, wake], return_when=asyncio.FIRST_COMPLETED)
        wake.cancel()
        self.cancelled += gone.done()

    async def _slot(self, path: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        slot, action = int(path.split("/")[2].split("?")[0]), path.split("action=")[1]
        if action == "erase":
            return await self._json(writer, {"n_erased": self.restored.pop(slot, 0)})
        assert self.slot_folder is not None, "this stub was not asked to hand over"
        file = self.slot_folder / body["filename"]
        if action == "save":
            count = self.prompted.get(slot, 0) if self.saves_tokens else 0
            file.write_bytes(b"%d" % count)
            return await self._json(writer, {"n_saved": count, "n_written": file.stat().st_size})
        if not file.exists():
            return await self._json(writer, {"error": {"code": 400, "message": "no file", "type": "x"}}, 400)
        self.restored[slot] = int(file.read_bytes())
        return await self._json(writer, {"n_restored": self.restored[slot]})

    async def _json(self, writer: asyncio.StreamWriter, value: Any, status: int = 200) -> None:
        content = json.dumps(value).encode()
        length = f"Content-Length: {len(content)}\r\n"
        writer.write(HEAD.format(status=status, kind="application/json", length=length).encode() + content)
        await writer.drain()

    async def _piece(self, writer: asyncio.StreamWriter, content: bytes) -> None:
        writer.write(b"%x\r\n%b\r\n" % (len(content), content))
        await writer.drain()


@asynccontextmanager
async def running_stub(**behaviour: Any) -> AsyncIterator[Stub]:
    stub = Stub(**behaviour)
    server = await asyncio.start_server(stub.serve, stub.host, 0)
    stub.server, stub.port = server, server.sockets[0].getsockname()[1]
    try:
        yield stub
    finally:
        stub.go_on.set()
        server.close()

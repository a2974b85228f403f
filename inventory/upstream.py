"""llama-server's control HTTP: the only file that knows httpx and the shape of those answers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import httpx

CONTROL_SECONDS = 10.0
MAX_LISTED_CHARACTERS = 300


class UpstreamError(Exception):
    """A llama-server did not do what it was asked; the text is for a person."""


class NotListening(UpstreamError):
    """Nothing accepts connections there."""


class TooSlow(UpstreamError):
    """It accepted the call and did not answer in time."""


class Rejected(UpstreamError):
    """It answered with an error."""

    def __init__(self, what: str, status: int, text: str) -> None:
        super().__init__(f"{what}: llama-server answered {status}: {text}")
        self.status = status


class Health(StrEnum):
    READY = "ready"
    LOADING = "loading"
    SILENT = "silent"


@dataclass(frozen=True)
class Timings:
    """What one request cost, as llama-server measured it."""

    prompt_tokens: int
    cached_tokens: int
    prompt_seconds: float
    predicted_tokens: int
    predicted_seconds: float

    @classmethod
    def from_answer(cls, timings: dict[str, Any]) -> Timings:
        return cls(
            prompt_tokens=int(timings["prompt_n"]),
            cached_tokens=int(timings.get("cache_n", 0)),
            prompt_seconds=float(timings["prompt_ms"]) / 1000,
            predicted_tokens=int(timings["predicted_n"]),
            predicted_seconds=float(timings["predicted_ms"]) / 1000,
        )


@dataclass(frozen=True)
class SavedSlot:
    tokens: int
    size_bytes: int
    seconds: float


class LlamaServer:
    """Control calls to one llama-server; make it with `open_server`."""

    def __init__(self, client: httpx.AsyncClient, url: str) -> None:
        self._client = client
        self.url = url

    async def health(self) -> Health:
        """Never raises: a server that is not there is silent."""
        try:
            answer = await self._client.get("/health")
        except httpx.HTTPError:
            return Health.SILENT
        return Health.READY if answer.status_code == 200 else Health.LOADING

    async def props(self) -> dict[str, Any]:
        return await self._get("/props")

    async def alias(self) -> str:
        """Who answers: a taken port may belong to another llama-server."""
        return str((await self.props()).get("model_alias", ""))

    async def slots(self) -> list[dict[str, Any]]:
        answer: Any = await self._get("/slots")
        return list(answer)

    async def apply_template(self, messages: Sequence[dict[str, Any]]) -> str:
        answer = await self._post("/apply-template", {"messages": list(messages)})
        return str(answer["prompt"])

    async def tokenize(self, text: str) -> list[int]:
        body = {"content": text, "add_special": True, "parse_special": True}
        return [int(token) for token in (await self._post("/tokenize", body))["tokens"]]

    async def prefill(
        self, tokens: Sequence[int], slot: int, *, keep: bool, timeout_seconds: float
    ) -> Timings:
        """Process a prompt and generate nothing; `keep` leaves it in the slot and uses what is there."""
        body = {"prompt": list(tokens), "n_predict": 0, "id_slot": slot, "cache_prompt": keep, "stream": True}
        answers = [answer async for answer in self._stream("/completion", body, timeout_seconds)]
        return _last_timings(answers)

    async def embed(self, text: str, *, timeout_seconds: float) -> list[float]:
        """The embedding of a text, by a server of a model that makes them."""
        answer = await self._post("/v1/embeddings", {"input": text}, timeout_seconds)
        return [float(number) for number in answer["data"][0]["embedding"]]

    async def decode_step_seconds(
        self, tokens: Sequence[int], slot: int, count: int, *, timeout_seconds: float
    ) -> list[float]:
        """Seconds of each decode step after the first token, by the server's own clock.

        Streamed, because a sliced model babbles and a whole answer would not always be valid text.
        """
        body = {
            "prompt": list(tokens),
            "n_predict": count,
            "id_slot": slot,
            "cache_prompt": True,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "timings_per_token": True,
        }
        marks: list[tuple[int, float]] = []
        async for answer in self._stream("/completion", body, timeout_seconds):
            if "timings" in answer:
                timings = Timings.from_answer(answer["timings"])
                marks.append((timings.predicted_tokens, timings.predicted_seconds))
        pairs = zip(marks, marks[1:], strict=False)
        return [(late - early) / (last - first) for (first, early), (last, late) in pairs if last > first]

    async def save_slot(self, slot: int, filename: str, *, timeout_seconds: float) -> SavedSlot:
        answer = await self._slot_action(slot, "save", filename, timeout_seconds)
        return SavedSlot(answer["n_saved"], answer["n_written"], answer["timings"]["save_ms"] / 1000)

    async def restore_slot(self, slot: int, filename: str, *, timeout_seconds: float) -> SavedSlot:
        answer = await self._slot_action(slot, "restore", filename, timeout_seconds)
        return SavedSlot(answer["n_restored"], answer["n_read"], answer["timings"]["restore_ms"] / 1000)

    async def erase_slot(self, slot: int) -> None:
        await self._post(f"/slots/{slot}?action=erase", {})

    async def _slot_action(
        self, slot: int, action: str, filename: str, timeout_seconds: float
    ) -> dict[str, Any]:
        return await self._post(f"/slots/{slot}?action={action}", {"filename": filename}, timeout_seconds)

    async def _get(self, path: str) -> Any:
        with_what = f"{self.url}{path}"
        try:
            answer = await self._client.get(path)
        except httpx.HTTPError as error:
            raise _translated(error, with_what) from None
        return _content(answer, with_what)

    async def _post(self, path: str, body: dict[str, Any], timeout_seconds: float = CONTROL_SECONDS) -> Any:
        with_what = f"{self.url}{path}"
        try:
            answer = await self._client.post(path, json=body, timeout=timeout_seconds)
        except httpx.HTTPError as error:
            raise _translated(error, with_what) from None
        return _content(answer, with_what)

    async def _stream(
        self, path: str, body: dict[str, Any], timeout_seconds: float
    ) -> AsyncIterator[dict[str, Any]]:
        with_what = f"{self.url}{path}"
        try:
            async with self._client.stream("POST", path, json=body, timeout=timeout_seconds) as answer:
                if answer.status_code != 200:
                    await answer.aread()
                    _content(answer, with_what)
                async for line in answer.aiter_lines():
                    if line.startswith("data: {"):
                        yield _event(line, with_what)
        except httpx.HTTPError as error:
            raise _translated(error, with_what) from None


@asynccontextmanager
async def open_server(
    port: int, api_key: str = "", *, host: str = "127.0.0.1", timeout_seconds: float = CONTROL_SECONDS
) -> AsyncIterator[LlamaServer]:
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    url = f"http://{host}:{port}"
    # llama-server drops kept connections without a word: a call on such a one would fail for no reason
    limits = httpx.Limits(max_connections=64, max_keepalive_connections=0)
    timeout = httpx.Timeout(timeout_seconds)
    async with httpx.AsyncClient(
        base_url=url, headers=headers, timeout=timeout, limits=limits, trust_env=False
    ) as client:
        yield LlamaServer(client, url)


def _last_timings(answers: list[dict[str, Any]]) -> Timings:
    timed = [answer["timings"] for answer in answers if "timings" in answer]
    if not timed:
        raise UpstreamError("llama-server ended its answer without timings: it was cut off or is too old")
    return Timings.from_answer(timed[-1])


def _event(line: str, what: str) -> dict[str, Any]:
    event: dict[str, Any] = json.loads(line.removeprefix("data: "))
    if "error" in event:
        raise Rejected(
            what, int(event["error"].get("code", 500)), str(event["error"].get("message", ""))[:300]
        )
    return event


def _content(answer: httpx.Response, what: str) -> Any:
    if answer.status_code == 200:
        return answer.json()
    raise Rejected(what, answer.status_code, _message(answer))


def _message(answer: httpx.Response) -> str:
    try:
        text = str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        text = answer.text
    return text[:MAX_LISTED_CHARACTERS]


def _translated(error: httpx.HTTPError, what: str) -> UpstreamError:
    if isinstance(error, httpx.TimeoutException):
        return TooSlow(f"{what} did not answer in time")
    if isinstance(error, httpx.ConnectError):
        return NotListening(f"{what}: nothing listens there")
    return UpstreamError(f"{what} broke off: {str(error) or type(error).__name__}")

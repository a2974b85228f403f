"""Embeddings: each text takes a slot of its own for the moment that it needs, on whichever replica is least busy."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from serving import upstream
from serving.core.balancer import Lease, Ticket
from serving.core.body import BadRequest, parse
from serving.core.embedding import EMBEDDING_PATH, EmbeddingRequest, embedding_request
from serving.gateway.allowance import reserve, settle
from serving.gateway.arriving import served
from serving.gateway.errors import ApiError, bad_request
from serving.gateway.gateway import Gateway
from serving.gateway.generation import fault_of
from serving.gateway.http import Client
from serving.gateway.keys import Caller
from serving.gateway.prompt import tokenise, too_long
from serving.gateway.routes import Route
from serving.gateway.timeline import Timeline

TEXTS_AT_ONCE = 8  # of one request; the others of it wait their turn outside of the queue
TOKENS_AROUND = 16  # what a tokenizer may add before and after a text


@dataclass(frozen=True)
class Embedding:
    """One request for embeddings on its way."""

    gateway: Gateway
    route: Route
    client: Client
    caller: Caller
    timeline: Timeline
    request: EmbeddingRequest

    async def run(self) -> None:
        self.timeline.deployment, self.timeline.model = self.route.deployment, self.route.name
        self._refuse_generator()
        self.gateway.retries.request()
        reserved = sum(await self._token_counts())
        reserve(self.gateway, self.client, self.caller, reserved)
        try:
            answers = await self._all()
        finally:
            used = self.timeline.prompt_tokens or 0
            settle(self.gateway, self.caller, reserved, used, 0)
        data = [
            {"object": "embedding", "index": index, "embedding": answer["data"][0]["embedding"]}
            for index, answer in enumerate(answers)
        ]
        usage = {"prompt_tokens": used, "total_tokens": used}
        await self.client.json(
            200, {"object": "list", "data": data, "model": self.request.model, "usage": usage}
        )

    def _refuse_generator(self) -> None:
        if not self.route.makes_embeddings:
            raise ApiError(
                400,
                "not_supported",
                f"{self.request.model} generates text; embeddings need a deployment of a model that makes them",
                param="model",
            )

    async def _token_counts(self) -> list[int]:
        """Of each text a bound, or the number where that matters; 400 for one that no slot can hold."""
        context = self.route.context_tokens
        bounds = [len(text.encode()) + TOKENS_AROUND for text in self.request.texts]
        counts = []
        for index, (text, bound) in enumerate(zip(self.request.texts, bounds, strict=True)):
            if bound <= context and not self.caller.tokens_per_minute:
                counts.append(bound)
                continue
            endpoint = self.route.any_endpoint()
            count = len(await tokenise(endpoint, text, self.gateway.limits.control_seconds))
            if count > context:
                raise too_long(f"input[{index}] takes {count} tokens, the context holds {context}", "input")
            counts.append(count)
        return counts

    async def _all(self) -> list[Any]:
        turns = asyncio.Semaphore(TEXTS_AT_ONCE)

        async def one(index: int, text: str) -> Any:
            async with turns:
                return await self._one(f"{self.timeline.request_id}-{index}", text)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(index, text)) for index, text in enumerate(self.request.texts)]
        except BaseExceptionGroup as faults:
            raise faults.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _one(self, name: str, text: str) -> Any:
        dispatcher, balancer = self.route.dispatcher, self.route.balancer
        ticket = Ticket(name, self.caller.key, self.gateway.clock())
        balancer.admit(ticket, self.gateway.clock())
        try:
            try:
                return await self._asked(ticket, text)
            except upstream.UpstreamError as error:
                is_declined = isinstance(error, upstream.Declined) and error.status != 503
                if (
                    is_declined
                    or not balancer.backends.keys() - ticket.refused
                    or not self.gateway.retries.take()
                ):
                    raise
                dispatcher.rejoin(ticket, "decode")
                return await self._asked(ticket, text)
        finally:
            dispatcher.leave(ticket)

    async def _asked(self, ticket: Ticket, text: str) -> Any:
        lease = await self.route.dispatcher.lease(ticket)
        endpoint = self.route.endpoints[lease.replica]
        if self.timeline.bound is None:
            self.timeline.bound, self.timeline.decode = self.gateway.clock(), endpoint
        seconds = self.gateway.limits.first_token_deadline(self.route.context_tokens)
        try:
            answer = await upstream.call(
                endpoint.target, "POST", EMBEDDING_PATH, self.request.body(text), seconds
            )
        except BaseException as error:
            self.route.dispatcher.abandon(lease, self.gateway.limits.unconfirmed_seconds, self._is_idle)
            if isinstance(error, upstream.UpstreamError):
                self._blame(ticket, lease, error)
            raise
        self.timeline.cached_tokens = 0
        self.timeline.prompt_tokens = (self.timeline.prompt_tokens or 0) + answer["usage"]["prompt_tokens"]
        self.route.dispatcher.release(lease)
        self.route.balancer.succeeded(lease.replica, self.gateway.clock())
        return answer

    def _blame(self, ticket: Ticket, lease: Lease, error: upstream.UpstreamError) -> None:
        ticket.refused |= {lease.replica}
        if isinstance(error, upstream.Declined) and error.status != 503:
            return
        self.route.balancer.failed(lease.replica, self.gateway.clock(), fault_of(error))
        self.gateway.suspect(lease.replica, str(error))

    async def _is_idle(self, replica: int, slot: int) -> bool:
        """A text without a slot's number may lie in any slot, so this asks for all of them."""
        try:
            slots = await upstream.call(self.route.endpoints[replica].target, "GET", "/slots")
            return not any(one["is_processing"] for one in slots)
        except upstream.ConnectFailed:
            return True
        except upstream.UpstreamError:
            return False


async def embed(gateway: Gateway, client: Client, caller: Caller, timeline: Timeline) -> None:
    """Read the request and answer it, when the model that it names makes embeddings."""
    try:
        request = embedding_request(parse(await client.body(gateway.limits)))
    except BadRequest as error:
        raise bad_request(error) from error
    caller.check_model(request.model)

    async def work(route: Route) -> None:
        await Embedding(gateway, route, client, caller, timeline, request).run()

    await served(gateway, client, timeline, request.model, work)

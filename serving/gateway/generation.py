"""One answer on its way: counted, queued, prompted, handed over, streamed, its slot given back in every case."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from serving import upstream
from serving.core import sse
from serving.core.balancer import Held, Lease, Ticket
from serving.core.handover import Handover, HandoverBroken
from serving.core.health import Fault
from serving.core.openai import Generation
from serving.gateway import handing
from serving.gateway.allowance import charged
from serving.gateway.answer import Answer
from serving.gateway.errors import ApiError
from serving.gateway.gateway import Gateway
from serving.gateway.http import Client
from serving.gateway.keys import Caller
from serving.gateway.prompt import Prompt, prompt_of, tokens_of
from serving.gateway.routes import Endpoint, Route
from serving.gateway.timeline import Timeline

COUNT_SECONDS = 2.0  # for the tokens of a prompt whose answer was cut: the client waits for the reason
STEP_FAULTS = (upstream.UpstreamError, HandoverBroken)


@dataclass(frozen=True)
class Call:
    """What is fixed of one request from the start."""

    gateway: Gateway
    route: Route
    client: Client
    caller: Caller
    request: Generation
    timeline: Timeline
    replica: int | None = None  # the one that has to answer; None leaves it to the balancer


class Run:
    """The way of one request through the gateway."""

    def __init__(self, call: Call, answer: Answer) -> None:
        self.call = call
        self.answer = answer
        self.gateway, self.route, self.timeline = call.gateway, call.route, call.timeline
        self.limits = call.gateway.limits
        self.clock = call.gateway.clock
        self.ticket = Ticket(self.timeline.request_id, call.caller.key, self.timeline.received)
        self.ticket.affinity, self.ticket.only = conversation(call), call.replica
        self.prompt = Prompt(0, (), 0)
        self.files: list[tuple[Endpoint, str]] = []

    async def run(self) -> None:
        self._refuse_poison()
        self.gateway.retries.request()
        balancer, caller = self.route.balancer, self.call.caller
        balancer.check_room()
        self.prompt = await prompt_of(
            self.call.request,
            self.route.any_endpoint(),
            self.route.context_tokens,
            needs_tokens=balancer.hands_over(self.clock()) or caller.tokens_per_minute > 0,
            timeout_seconds=self.limits.control_seconds,
        )
        self.ticket.prompt_tokens = self.prompt.token_count
        with charged(self.gateway, self.call.client, caller, self.timeline, self.prompt.token_count):
            balancer.admit(self.ticket, self.clock(), caller.max_concurrent)
            try:
                await self._serve()
            except upstream.UpstreamError:
                self.timeline.note_cut(await self._counted_prompt())
                raise
            finally:
                self.timeline.note_cut(self._known_prompt_tokens())
                self.route.dispatcher.leave(self.ticket)
                self._remove_files()
        await self.answer.finish()

    async def _serve(self) -> None:
        lease = await self._lease()
        if self.ticket.phase == "prefill":
            await self._prefill(lease)
            self.route.dispatcher.rejoin(self.ticket, "decode")
            lease = await self._lease()
        try:
            await self._decode(lease)
        except upstream.UpstreamError as error:
            if not self._may_retry(error):
                raise
            self._start_over(lease, error)
            await self._decode(await self._lease())

    def _known_prompt_tokens(self) -> int | None:
        return len(self.prompt.tokens) or None

    async def _counted_prompt(self) -> int | None:
        """The tokens of the prompt, for which nobody has asked yet when it was short; None when nobody answers."""
        if self.timeline.first_token is None or self.prompt.tokens or self.timeline.decode is None:
            return self._known_prompt_tokens()
        try:
            return len(await tokens_of(self.call.request, self.timeline.decode, COUNT_SECONDS))
        except upstream.UpstreamError:
            return None

    def _start_over(self, lease: Lease, error: upstream.UpstreamError) -> None:
        failed = self.timeline.decode.label if self.timeline.decode else "a replica"
        self.timeline.retry_reason = f"{failed} failed: {error}"
        if self.timeline.handover is not None:
            self.timeline.handover.fall_back(f"the decode replica failed: {error}")
        self.timeline.first_token, self.timeline.streamed_events = None, 0
        self.answer.restart()
        self.ticket.refused |= {lease.replica}
        self.route.dispatcher.rejoin(self.ticket, "decode")

    async def _lease(self) -> Lease:
        asked = self.clock()
        lease = await self.route.dispatcher.lease(self.ticket)
        if self.timeline.bound is None:
            self.timeline.bound = self.clock()
        else:
            self.timeline.second_wait_seconds += self.clock() - asked
        return lease

    async def _prefill(self, lease: Lease) -> None:
        """Prompt and save; whatever goes wrong only means that the decode replica computes the prompt itself."""
        source = self.route.endpoints[lease.replica]
        handover = handing.begin(self.prompt, self.clock())
        self.timeline.prefill, self.timeline.handover = source, handover
        try:
            async with self._held(lease):
                await handing.prefill(handover, self.prompt, source, lease.slot, self.limits, self.clock)
                self.files.append((source, handover.filename))
                await handing.save(handover, source, lease.slot, self.limits, self.clock)
        except STEP_FAULTS as error:
            handover.fall_back(f"prefill: {error}")

    async def _decode(self, lease: Lease) -> None:
        destination = self.route.endpoints[lease.replica]
        self.timeline.decode = destination
        async with self._held(lease):
            handover = self.timeline.handover
            if handover is not None and not handover.is_settled:
                await self._take_over(handover, destination, lease.slot)
            await self._stream(destination, lease.slot)

    async def _take_over(self, handover: Handover, destination: Endpoint, slot: int) -> None:
        source = self.timeline.prefill
        assert source is not None, "a hand-over that is not settled has saved its prompt somewhere"
        if source.replica == destination.replica:
            handover.fall_back(f"no decode replica was in service, so {source.label} answered itself")
            return self._remove_files()
        handover.waited(self.timeline.second_wait_seconds)
        try:
            self.files.append((destination, handover.filename))
            await handing.move(handover, self.gateway.mover, source, destination, self.clock)
            await handing.restore(handover, destination, slot, self.limits, self.clock)
        except STEP_FAULTS as error:
            handover.fall_back(f"{handover.step}: {error}")
            if handover.may_have_restored:
                await handing.erase(destination, slot, self.limits)
        return self._remove_files()

    async def _stream(self, destination: Endpoint, slot: int) -> None:
        deadlines = upstream.Deadlines(
            connect_seconds=self.limits.connect_seconds,
            first_token_seconds=self.limits.first_token_deadline(self.prompt.token_count),
            inter_token_seconds=self.limits.inter_token_seconds,
            total_seconds=self.limits.total_seconds - (self.clock() - self.timeline.received),
        )
        stream = await upstream.open_stream(
            destination.target, self.call.request.path, self._body(slot), deadlines
        )
        try:
            while events := await stream.events():
                if self.timeline.first_token is None and sse.has_token(events):
                    self.timeline.first_token = self.clock()
                    stream.offer_to(self._take)
                self._count(sum(map(sse.has_token, sse.split(events))))
                await self.answer.feed(events)
        except upstream.ConnectionLost as error:
            raise upstream.ConnectionLost(self.route.why_down(destination.replica, str(error))) from error
        finally:
            stream.close()
        if not self.answer.is_done:
            raise upstream.ConnectionLost("the replica's answer ended in the middle")

    def _take(self, events: bytes, number: int) -> bool:
        """Text after the first token, passed on in the moment of its arrival."""
        if not self.answer.take(events):
            return False
        self._count(number)
        return True

    def _count(self, events: int) -> None:
        self.gateway.output_tokens += events
        self.timeline.streamed_events += events

    def _body(self, slot: int) -> dict[str, object]:
        return {
            **self.call.request.body,
            "max_tokens": self.prompt.max_tokens,
            "stream": True,  # of an answer that is not streamed the replica would not notice the end of our wish
            "stream_options": {"include_usage": True},
            "id_slot": slot,
            "cache_prompt": True,
        }

    @asynccontextmanager
    async def _held(self, lease: Lease) -> AsyncIterator[None]:
        """Holds a slot; however this ends, the slot is counted until its server is known to be done with it."""
        dispatcher = self.route.dispatcher
        try:
            yield
        except upstream.ConnectFailed as error:
            dispatcher.release(lease)
            self._blame(lease, error)
            raise
        except BaseException as error:
            dispatcher.abandon(lease, self.limits.unconfirmed_seconds, self._is_idle)
            if isinstance(error, upstream.UpstreamError):
                self._blame(lease, error)
            raise
        dispatcher.release(lease, self._left_in_slot())
        self.route.balancer.succeeded(lease.replica, self.clock())

    def _left_in_slot(self) -> Held:
        used = (self.timeline.prompt_tokens or 0) + (self.timeline.output_tokens or 0)
        return Held(self.ticket.affinity, used)

    async def _is_idle(self, replica: int, slot: int) -> bool:
        try:
            return await handing.is_slot_idle(self.route.endpoints[replica], slot, self.limits)
        except upstream.ConnectFailed:
            return True
        except upstream.UpstreamError:
            return False

    def _blame(self, lease: Lease, error: upstream.UpstreamError) -> None:
        """An answer with an HTTP error, be it 500, is no sign of a broken replica: the request may be at fault."""
        if isinstance(error, upstream.Declined) and error.status != 503:
            return
        if isinstance(error, upstream.ConnectionLost) and self.timeline.first_token is None:
            self.gateway.poison.crashed(self._body_hash(), lease.replica, self.clock())
        self.route.balancer.failed(lease.replica, self.clock(), fault_of(error))
        self.gateway.suspect(lease.replica, str(error))

    def _may_retry(self, error: upstream.UpstreamError) -> bool:
        """Only while the client has seen nothing, only elsewhere, and not what may have crashed a replica."""
        has_others = bool(self.route.balancer.backends.keys() - self.ticket.refused - {self._decoder()})
        is_bound = self.call.client.has_started or self.call.replica is not None
        if is_bound or not has_others or not self.gateway.retries.take():
            return False
        if isinstance(error, upstream.ConnectionLost):
            return self.timeline.first_token is not None
        return not isinstance(error, upstream.Declined) or error.status == 503

    def _decoder(self) -> int | None:
        return self.timeline.decode.replica if self.timeline.decode else None

    def _refuse_poison(self) -> None:
        poison = self.gateway.poison
        if not poison.is_empty and poison.is_poison(self._body_hash(), self.clock()):
            raise ApiError(
                400,
                "request_crashes_replicas",
                "replicas crashed each time this request was sent; it is refused for a few minutes",
            )

    def _body_hash(self) -> str:
        return hashlib.sha256(sse.compact(self.call.request.body)).hexdigest()

    def _remove_files(self) -> None:
        """Slot files hold the prompt of a person: they go as soon as they are not needed."""
        while self.files:
            self.gateway.mover.remove(*self.files.pop())


def fault_of(error: upstream.UpstreamError) -> Fault:
    if isinstance(error, upstream.TooSlow):
        return "silent"
    return "refused" if isinstance(error, upstream.ConnectFailed) else "soft"


def conversation(call: Call) -> str:
    """Names a conversation by its beginning, so that a follow-up can be sent to where its prefix lies."""
    return hashlib.sha256(call.caller.key.encode() + sse.compact(call.request.opening)).hexdigest()

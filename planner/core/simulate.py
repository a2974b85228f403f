"""Discrete-event simulation of a deployed plan: who waits how long, and how fast the answers come."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush

import numpy as np

from planner.core.burst import Requests, busy_periods
from planner.core.memory import Floats
from planner.core.servers import Server

LATE, SLOT_JSQ, CLASSIC_JSQ = "late", "slot-jsq", "classic-jsq"
ROUTERS = (LATE, SLOT_JSQ, CLASSIC_JSQ)
NEVER = float("inf")
SAME_TIME_SECONDS = 1e-9  # a prompt and an answer that end this close together: the prompt goes first


@dataclass(frozen=True)
class Simulation:
    """Figures of every request; a wait is time spent in queues, service itself not counted."""

    wait_seconds: Floats
    ttft_seconds: Floats
    tokens_per_second: Floats
    finished_seconds: Floats
    events: int

    @property
    def max_wait_seconds(self) -> float:
        return float(self.wait_seconds.max())

    @property
    def mean_wait_seconds(self) -> float:
        return float(self.wait_seconds.mean())

    @property
    def p95_wait_seconds(self) -> float:
        return float(np.percentile(self.wait_seconds, 95))

    @property
    def slowest_tokens_per_second(self) -> float:
        return float(self.tokens_per_second.min())


def simulate(fleet: Sequence[Server], requests: Requests, router: str = LATE) -> Simulation:
    """Serve every request; prefill and decode replicas in tandem, or mixed replicas alone."""
    assert router in ROUTERS
    prefill = [server for server in fleet if server.role == "prefill"]
    serving = [server for server in fleet if server.role != "prefill"]
    periods = busy_periods(fleet, requests)
    begins = np.repeat(
        requests.arrival_seconds[[period.start for period in periods]], list(map(len, periods))
    )
    near = replace(requests, arrival_seconds=requests.arrival_seconds - begins)
    handed = _prefill(prefill, near, periods, router) if prefill else _Handed.straight(near)
    told = _Decoding(serving, near, handed, router).run(periods)
    return replace(told, finished_seconds=told.finished_seconds + begins)


@dataclass(frozen=True)
class _Handed:
    """Prompts as they come to the second phase: when ready, since when on the wire, how long they waited so far."""

    ready: list[float]
    sent: list[float]
    waited: list[float]
    events: int

    @classmethod
    def straight(cls, requests: Requests) -> _Handed:
        arrivals = requests.arrival_seconds.tolist()
        return cls(arrivals, arrivals, [0.0] * len(arrivals), len(arrivals))


def _prefill(fleet: Sequence[Server], requests: Requests, periods: list[range], router: str) -> _Handed:
    """Prompts through their replicas and the sender's port, first come, first served."""
    tokens = requests.input_tokens
    busy = [server.prompt_interval(tokens).tolist() for server in fleet]
    done_after = [server.prompt_seconds(tokens).tolist() for server in fleet]
    sending = [server.handover_seconds(tokens).tolist() for server in fleet]
    arrivals = requests.arrival_seconds.tolist()
    ready, sent, waited = [], [], []
    numbers = range(len(fleet))
    for period in periods:
        free, port = [0.0] * len(fleet), [0.0] * len(fleet)
        inside: list[deque[float]] = [deque() for _ in fleet]
        for i in period:
            arrival = arrivals[i]
            if len(fleet) == 1:
                k = 0
            elif router == LATE:
                first = max(arrival, min(free))
                k, soonest = 0, NEVER
                for one in numbers:
                    if free[one] <= first:
                        sent_at = max(first + done_after[one][i], port[one]) + sending[one][i]
                        if sent_at < soonest:
                            k, soonest = one, sent_at
            else:
                for queue in inside:
                    while queue and queue[0] <= arrival:
                        queue.popleft()
                k = min(numbers, key=lambda k: len(inside[k]))
            start = max(arrival, free[k])
            free[k] = start + busy[k][i]
            done = start + done_after[k][i]
            begin = max(done, port[k])
            port[k] = begin + sending[k][i]
            if router != LATE:
                inside[k].append(port[k])
            ready.append(port[k])
            sent.append(begin)
            waited.append(start - arrival + begin - done)
    return _Handed(ready, sent, waited, 4 * len(ready))


class _Replica:
    """A serving replica: its batch advances in tokens, at a pace set by how many are in it."""

    __slots__ = (
        "batch",
        "busy",
        "clock",
        "held",
        "next_event",
        "piece",
        "port",
        "prompt_ends",
        "prompts",
        "queue",
        "slots",
        "steps",
        "tokens",
        "work",
    )

    def __init__(self, server: Server) -> None:
        self.slots = server.slots
        self.steps = server.step_seconds
        self.held = 0  # slots taken
        self.busy = 0  # requests that generate
        self.clock = 0.0
        self.tokens = 0.0  # tokens that a request present from the start would have
        self.batch: list[tuple[float, int]] = []
        self.queue: deque[int] = deque()
        self.prompts: deque[tuple[float, float, int]] = deque()
        self.work = 0.0  # seconds of prompt processing left at the head of `prompts`
        self.piece = 0.0
        self.port = 0.0
        self.next_event = NEVER
        self.prompt_ends = False  # at the next event, and not an answer

    def restart(self) -> None:
        """Begin another period, idle: its times count from zero."""
        assert not self.held and not self.queue, "a period ends when everything is served"
        self.clock = self.tokens = self.port = 0.0

    def advance(self, now: float) -> None:
        passed = now - self.clock
        self.clock = now
        if self.prompts:
            if self.busy:
                # llama.cpp puts one piece of a prompt between two decode steps
                round_seconds = self.steps[self.busy] + self.piece
                self.tokens += passed / round_seconds
                self.work -= passed * self.piece / round_seconds
            else:
                self.work -= passed
        elif self.busy:
            self.tokens += passed / self.steps[self.busy]

    def plan_next(self) -> None:
        """When something ends here if nothing else happens."""
        following = NEVER
        self.prompt_ends = False
        if self.prompts:
            pace = 1.0
            if self.busy:
                round_seconds = self.steps[self.busy] + self.piece
                pace = round_seconds / self.piece
                following = self.clock + (self.batch[0][0] - self.tokens) * round_seconds
            end = self.clock + self.work * pace
            self.prompt_ends = end <= following
            following = min(following, end)
        elif self.busy:
            following = self.clock + (self.batch[0][0] - self.tokens) * self.steps[self.busy]
        self.next_event = following

    def join(self, tokens: float, request: int) -> None:
        self.busy += 1
        heappush(self.batch, (self.tokens + tokens, request))

    def add_prompt(self, seconds: float, piece: float, request: int) -> None:
        if not self.prompts:
            self.work, self.piece = seconds, piece
        self.prompts.append((seconds, piece, request))

    def end_prompt(self) -> int:
        request = self.prompts.popleft()[2]
        if self.prompts:
            self.work, self.piece = self.prompts[0][:2]
        return request


class _Decoding:
    """The second phase: slots are given out, caches arrive, answers are written."""

    def __init__(self, fleet: Sequence[Server], requests: Requests, handed: _Handed, router: str) -> None:
        self.replicas = [_Replica(server) for server in fleet]
        self.late = router == LATE
        self.by_slots = router == SLOT_JSQ
        self.handed = handed
        self.arrivals = requests.arrival_seconds.tolist()
        self.output = requests.output_tokens.tolist()
        tokens = requests.input_tokens
        self.receiving = [server.handover_seconds(tokens).tolist() for server in fleet]
        self.mixed = fleet[0].role == "mixed"
        if self.mixed:
            self.prompt = [server.prompt_interval(tokens).tolist() for server in fleet]
            share = [np.minimum(1.0, server.piece_tokens / tokens) for server in fleet]
            self.pieces = [(np.array(p) * s).tolist() for p, s in zip(self.prompt, share, strict=True)]
        n = len(self.arrivals)
        self.began = [0.0] * n
        self.ended = [0.0] * n
        self.waited = list(handed.waited)
        self.line: deque[int] = deque()
        self.arriving: list[tuple[float, int, int]] = []  # caches on their way to a slot that is already held
        self.events = handed.events

    def run(self, periods: list[range]) -> Simulation:
        for period in periods:
            for replica in self.replicas:
                replica.restart()
            self._serve(sorted(period, key=self.handed.ready.__getitem__))
        return self._result()

    def _serve(self, coming: list[int]) -> None:
        ready, replicas = self.handed.ready, self.replicas
        position, n = 0, len(coming)
        while True:
            k, at = self._soonest()
            arriving = self.arriving[0][0] if self.arriving else NEVER
            entering = ready[coming[position]] if position < n else NEVER
            if entering <= at and entering <= arriving:
                if entering == NEVER:
                    break
                self._enter(coming[position], entering)
                position += 1
            elif arriving <= at:
                now, request, k = heappop(self.arriving)
                self.events += 1
                self._begin(k, request, now)
            else:
                self._end(replicas[k], k, at)

    def _soonest(self) -> tuple[int, float]:
        best, at = 0, NEVER
        for k, replica in enumerate(self.replicas):
            if replica.next_event < at:
                best, at = k, replica.next_event
        return best, at

    def _enter(self, request: int, now: float) -> None:
        self.events += 1
        if not self.late:
            k = self._shortest_queue()
            if self.replicas[k].held < self.replicas[k].slots:
                self._take(k, request, now)
            else:
                self.replicas[k].queue.append(request)
            return
        k = self._free_replica()
        if k < 0:
            self.line.append(request)
        else:
            self._take(k, request, now)

    def _free_replica(self) -> int:
        """A replica with a free slot, the one that would generate fastest."""
        best, pace = -1, NEVER
        for k, replica in enumerate(self.replicas):
            if replica.held < replica.slots:
                seconds = replica.steps[replica.held + 1] + (len(replica.prompts) if self.mixed else 0)
                if seconds < pace:
                    best, pace = k, seconds
        return best

    def _shortest_queue(self) -> int:
        def load(k: int) -> float:
            replica = self.replicas[k]
            jobs = replica.held + len(replica.queue)
            return (jobs + 1) / replica.slots if self.by_slots else jobs

        return min(range(len(self.replicas)), key=load)

    def _take(self, k: int, request: int, now: float) -> None:
        """Give a slot; generation begins once the cache is there, or once the prompt is done."""
        replica = self.replicas[k]
        replica.held += 1
        if self.mixed:
            replica.advance(now)
            replica.add_prompt(self.prompt[k][request], self.pieces[k][request], request)
            if len(replica.prompts) == 1:
                self.waited[request] += now - self.handed.ready[request]
            replica.plan_next()
            return
        here = max(self.handed.sent[request], replica.port) + self.receiving[k][request]
        replica.port = here
        if here <= now:
            self._begin(k, request, now)
        else:
            heappush(self.arriving, (here, request, k))

    def _begin(self, k: int, request: int, now: float) -> None:
        replica = self.replicas[k]
        replica.advance(now)
        replica.join(self.output[request], request)
        replica.plan_next()
        self.began[request] = now
        self.waited[request] += now - self.handed.ready[request]

    def _end(self, replica: _Replica, k: int, now: float) -> None:
        self.events += 1
        replica.advance(now)
        if replica.prompt_ends or (replica.prompts and replica.work <= SAME_TIME_SECONDS):
            request = replica.end_prompt()
            self.began[request] = now
            replica.join(self.output[request], request)
            if replica.prompts:
                following = replica.prompts[0][2]
                self.waited[following] += now - self.handed.ready[following]
        else:
            replica.tokens = replica.batch[0][0]
            request = heappop(replica.batch)[1]
            replica.busy -= 1
            replica.held -= 1
            self.ended[request] = now
            self._refill(replica, k, now)
        replica.plan_next()

    def _refill(self, replica: _Replica, k: int, now: float) -> None:
        queue = self.line if self.late else replica.queue
        if queue:
            self._take(k, queue.popleft(), now)

    def _result(self) -> Simulation:
        began, ended = np.array(self.began), np.array(self.ended)
        output = np.array(self.output)
        speed = output / np.maximum(ended - began, 1e-12)
        return Simulation(
            wait_seconds=np.maximum(0.0, np.array(self.waited)),
            ttft_seconds=began - np.array(self.arrivals) + 1.0 / speed,
            tokens_per_second=speed,
            finished_seconds=ended,
            events=self.events,
        )

"""One bounded queue in front of the replicas of a deployment: join the shortest queue, bind late, be fair.

Nothing here waits: a caller admits a ticket, calls `bind` whenever something changed, and hands the leases
that come back to whoever waits for them. Time is a number of seconds, chance is the `rng` that was passed.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from serving.core.commands import Role
from serving.core.health import Fault, Health, may_eject

if TYPE_CHECKING:
    from random import Random

Phase = Literal["prefill", "decode"]

SLOW_START_SECONDS = 30.0
SLOW_START_SHARE = 0.1
AFFINITY_SLACK = 0.5  # share of its slots by which the replica that holds the prefix may be the busier one
LONGEST_RETRY_SECONDS = 60.0
SHORT_TURN_TOKENS = 256  # what a decode replica may compute itself: less than handing over costs the others


class Refused(Exception):
    """The request gets no place; trying again later may help."""

    def __init__(self, reason: str, retry_after_seconds: float) -> None:
        super().__init__(reason)
        self.retry_after_seconds = retry_after_seconds


class QueueFull(Refused):
    """Every place of the bounded queue is taken."""


class KeyBusy(Refused):
    """The caller's key has as many requests under way as it may have."""


class NoReplica(Refused):
    """No replica of the deployment is in service."""


@dataclass(eq=False)
class Ticket:
    """One request on its way through the queue; with a hand-over it passes twice."""

    request_id: str
    key: str
    enqueued_at: float
    phase: Phase = "decode"
    affinity: str = ""
    prompt_tokens: int = 0
    refused: frozenset[int] = frozenset()
    is_fresh: bool = True  # it has not been bound yet
    only: int | None = None  # the replica that has to answer

    def may_take(self, replica: int) -> bool:
        return replica not in self.refused and (self.phase == "prefill" or self.only in (None, replica))


@dataclass(frozen=True)
class Held:
    """The conversation whose cache a free slot still holds."""

    conversation: str
    tokens: int


@dataclass(eq=False)
class Lease:
    """A slot of a replica that belongs to one ticket until it is released or expires."""

    ticket: Ticket
    replica: int
    slot: int
    bound_at: float
    expires_at: float


@dataclass(eq=False)
class Backend:
    """A replica as the balancer sees it."""

    replica: int
    role: Role
    slots: int
    in_service_since: float
    draining: bool = False
    leases: dict[int, Lease] = field(default_factory=dict)
    unconfirmed: dict[int, float] = field(default_factory=dict)  # slot -> when it counts as free in any case
    held: dict[int, Held] = field(default_factory=dict)  # free slot -> what is still in it
    holder: dict[str, int] = field(default_factory=dict)  # conversation -> the free slot that holds it
    free: dict[int, None] = field(default_factory=dict)  # free slots, the one that was idle longest first
    health: Health = field(default_factory=Health)

    def __post_init__(self) -> None:
        self.resize(self.slots)

    @property
    def running(self) -> int:
        return len(self.leases) + len(self.unconfirmed)

    @property
    def load(self) -> float:
        return self.running / self.slots

    def takes(self, now: float) -> bool:
        return not self.draining and self.health.in_service(now)

    def limit(self, now: float, ramps: bool) -> int:
        """Slots that may be used now: one that has just come back must not get the whole queue at once."""
        if not ramps:
            return self.health.limit(self.slots)
        ramp = SLOW_START_SHARE + (1 - SLOW_START_SHARE) * (now - self.in_service_since) / SLOW_START_SECONDS
        return self.health.limit(min(self.slots, max(1, math.ceil(self.slots * ramp))))

    def give_back(self, slot: int) -> None:
        if slot < self.slots and slot not in self.leases and slot not in self.unconfirmed:
            self.free[slot] = None

    def resize(self, slots: int) -> None:
        self.slots = slots
        self.free = {slot: None for slot in self.free if slot < slots}
        for slot in range(slots):
            if slot not in self.free:
                self.give_back(slot)

    def take(self, lease: Lease) -> None:
        """Bind a free slot; what it held is overwritten."""
        del self.free[lease.slot]
        self.leases[lease.slot] = lease
        held = self.held.pop(lease.slot, NOTHING_HELD)
        if self.holder.get(held.conversation) == lease.slot:
            del self.holder[held.conversation]

    def hold(self, slot: int, held: Held) -> None:
        if held.conversation:
            self.held[slot] = held
            self.holder[held.conversation] = slot

    def slot_that_holds(self, conversation: str) -> int | None:
        slot = self.holder.get(conversation)
        return slot if slot in self.free else None


NOTHING_HELD = Held("", 0)


class Balancer:
    """The queue and the in-flight table of one deployment."""

    def __init__(self, rng: Random, max_waiting: int, lease_seconds: float, handover: bool = False) -> None:
        self.rng = rng
        self.max_waiting = max_waiting
        self.lease_seconds = lease_seconds
        self.handover = handover
        self.backends: dict[int, Backend] = {}
        self.waiting: list[Ticket] = []
        self.open: set[Ticket] = set()
        self.held_seconds = 1.0  # moving mean of how long a lease is held

    def set_replica(self, replica: int, role: Role, slots: int, ramps_from: float = -math.inf) -> None:
        """Add a replica, ramping it up from a moment on; of a known one only the figures change."""
        known = self.backends.get(replica)
        if known is None:
            self.backends[replica] = Backend(replica, role, slots, ramps_from)
        else:
            known.role = role
            known.resize(slots)
            if known.draining:
                known.draining, known.health, known.in_service_since = False, Health(), ramps_from

    def drain_replica(self, replica: int) -> None:
        """Bind nothing more to a replica; it is forgotten with its last lease."""
        self.backends[replica].draining = True
        self._forget_drained()

    def admit(self, ticket: Ticket, now: float, key_limit: int = 0) -> None:
        """A place in the queue, or one of the refusals."""
        if not any(backend.takes(now) for backend in self.backends.values()):
            raise NoReplica("no replica is in service", self.retry_after_seconds())
        if key_limit and sum(other.key == ticket.key for other in self.open) >= key_limit:
            raise KeyBusy(f"this key already has {key_limit} requests under way", self.retry_after_seconds())
        self.check_room()
        ticket.phase = (
            "prefill" if self.hands_over(now) and not self._is_short_turn(ticket, now) else "decode"
        )
        ticket.is_fresh = True
        self.open.add(ticket)
        self.waiting.append(ticket)

    def check_room(self) -> None:
        if len(self.waiting) >= self.max_waiting:
            raise QueueFull(f"{len(self.waiting)} requests are waiting already", self.retry_after_seconds())

    def rejoin(self, ticket: Ticket, phase: Phase, now: float) -> None:
        """Queue an admitted ticket again: for its decode phase, or for another replica after a failure."""
        assert ticket in self.open, "only an admitted ticket may come back"
        if ticket.refused.issuperset(self.backends):
            raise NoReplica("no other replica is in service", self.retry_after_seconds())
        ticket.phase = phase
        self.waiting.append(ticket)

    def leave(self, ticket: Ticket) -> None:
        """The request has ended, wherever it was; its place in the queue is free."""
        self.open.discard(ticket)
        if ticket in self.waiting:
            self.waiting.remove(ticket)

    def hands_over(self, now: float) -> bool:
        """Whether a hand-over is possible now: it takes a replica at each end."""
        roles = {backend.role for backend in self.backends.values() if backend.takes(now)}
        return self.handover and {"prefill", "decode"} <= roles

    def bind(self, now: float) -> list[Lease]:
        """Give free slots to waiting tickets; decode first, for a prompt that is ready holds memory."""
        if not self.waiting:
            return []
        self.expire(now)
        self._set_phases(now)
        leases = self._bind_phase("decode", now, len(self.waiting))
        if not self.waiting:
            return leases
        room = sum(backend.slots for backend in self._pool("decode", now)) - self._ready_prompts()
        return leases + self._bind_phase("prefill", now, room)

    def release(self, lease: Lease, now: float, holds: Held = NOTHING_HELD) -> None:
        """The slot is free; `holds` is the conversation that stays in it."""
        backend = self.backends.get(lease.replica)
        if backend is None or backend.leases.get(lease.slot) is not lease:
            return
        del backend.leases[lease.slot]
        backend.hold(lease.slot, holds)
        backend.give_back(lease.slot)
        self.held_seconds += 0.1 * (now - lease.bound_at - self.held_seconds)
        self._forget_drained()

    def abandon(self, lease: Lease, now: float, free_by: float) -> None:
        """The client has gone but the server may still compute: the slot counts until confirmed idle."""
        backend = self.backends.get(lease.replica)
        if backend is not None and backend.leases.get(lease.slot) is lease:
            backend.unconfirmed[lease.slot] = free_by
        self.release(lease, now)

    def confirm_idle(self, replica: int, slot: int) -> None:
        if replica in self.backends:
            self.backends[replica].unconfirmed.pop(slot, None)
            self.backends[replica].give_back(slot)
            self._forget_drained()

    def expire(self, now: float) -> list[Lease]:
        """Free what nobody released in time, so that a fault here cannot take a slot for ever."""
        expired = []
        for backend in list(self.backends.values()):
            for slot, free_by in list(backend.unconfirmed.items()):
                if now >= free_by:
                    self.confirm_idle(backend.replica, slot)
            # Every lease lasts as long, so they stand in the order in which they expire.
            while (oldest := next(iter(backend.leases.values()), None)) and now >= oldest.expires_at:
                expired.append(oldest)
                self.release(oldest, now)
        return expired

    def succeeded(self, replica: int, now: float) -> None:
        """A replica has given a whole answer; one that was ejected comes back and ramps up."""
        backend = self.backends.get(replica)
        if backend is not None and backend.health.succeed():
            backend.in_service_since = now

    def failed(self, replica: int, now: float, fault: Fault) -> bool:
        """A request failed by the replica's fault; true when the replica is ejected for it.

        No request can cause a refused connection or silence past a deadline: each ejects at once.
        """
        backend = self.backends.get(replica)
        if backend is None or not backend.health.in_service(now):
            return False
        pool = [other for other in self.backends.values() if other.role == backend.role]
        ejected = sum(not other.health.in_service(now) for other in pool)
        enough = backend.health.fail()
        if fault != "soft" or (enough and may_eject(ejected, len(pool))):
            backend.health.eject(now, fault)
            return True
        return False

    def running(self) -> int:
        return sum(len(backend.leases) for backend in self.backends.values())

    def waiting_in(self, phase: Phase) -> int:
        return sum(ticket.phase == phase for ticket in self.waiting)

    def retry_after_seconds(self) -> float:
        """When a place is likely to be free, with some spread so that the refused do not return together."""
        slots = max(1, sum(backend.slots for backend in self.backends.values()))
        seconds = (len(self.waiting) + 1) * self.held_seconds / slots
        return min(max(1.0, seconds), LONGEST_RETRY_SECONDS) * self.rng.uniform(1.0, 1.5)

    def _set_phases(self, now: float) -> None:
        """What waits for its first slot may change its way: replicas come and go, and so do held prefixes."""
        hands_over = self.hands_over(now)
        for ticket in self.waiting:
            if not hands_over:
                ticket.phase = "decode"
            elif ticket.is_fresh:
                ticket.phase = "decode" if self._is_short_turn(ticket, now) else "prefill"

    def _is_short_turn(self, ticket: Ticket, now: float) -> bool:
        """Whether a decode replica holds all but a little of the prompt, so that handing over gains nothing."""
        for backend in self._pool("decode", now):
            slot = backend.slot_that_holds(ticket.affinity) if ticket.affinity else None
            if slot is not None:
                more = ticket.prompt_tokens - backend.held[slot].tokens
                return 0 < more <= SHORT_TURN_TOKENS
        return False

    def _pool(self, phase: Phase, now: float) -> list[Backend]:
        """Replicas for a phase; whole requests run anywhere when nobody decodes or nothing is handed over."""
        taking = [backend for backend in self.backends.values() if backend.takes(now)]
        if phase == "prefill":
            return [backend for backend in taking if backend.role == "prefill"]
        decoding = [backend for backend in taking if backend.role != "prefill"]
        return decoding if decoding and self.handover else taking

    def _ready_prompts(self) -> int:
        """Prompts computed, or being computed, without a decode slot yet: each occupies a slot file."""
        prefilling = sum(
            len(backend.leases) for backend in self.backends.values() if backend.role == "prefill"
        )
        return prefilling + self.waiting_in("decode")

    def _bind_phase(self, phase: Phase, now: float, room: int) -> list[Lease]:
        leases: list[Lease] = []
        ramping = self._ramping(phase, now)
        while len(leases) < room:
            pool = [
                backend
                for backend in self._pool(phase, now)
                if backend.running < backend.limit(now, ramps=backend in ramping)
            ]
            lease = self._bind_one(phase, pool, now) if pool else None
            if lease is None:
                break
            leases.append(lease)
        return leases

    def _ramping(self, phase: Phase, now: float) -> list[Backend]:
        """Backends in slow start; when all are, nobody is: there is no one else to take the load."""
        pool = self._pool(phase, now)
        ramping = [backend for backend in pool if now - backend.in_service_since < SLOW_START_SECONDS]
        return ramping if len(ramping) < len(pool) else []

    def _bind_one(self, phase: Phase, pool: list[Backend], now: float) -> Lease | None:
        for ticket in self._in_turn(phase):
            candidates = [backend for backend in pool if ticket.may_take(backend.replica)]
            if candidates:
                backend, slot = self._choose(ticket, candidates)
                lease = Lease(ticket, backend.replica, slot, now, now + self.lease_seconds)
                backend.take(lease)
                self.waiting.remove(ticket)
                ticket.is_fresh = False
                return lease
        return None

    def _in_turn(self, phase: Phase) -> list[Ticket]:
        """What waits for a phase, whose key has the fewest slots first."""
        waiting = [ticket for ticket in self.waiting if ticket.phase == phase]
        if len(waiting) < 2:
            return waiting
        share = Counter(
            lease.ticket.key for backend in self.backends.values() for lease in backend.leases.values()
        )
        return sorted(waiting, key=lambda ticket: (share[ticket.key], ticket.enqueued_at))

    def _choose(self, ticket: Ticket, candidates: list[Backend]) -> tuple[Backend, int]:
        least = min(backend.load for backend in candidates)
        if ticket.affinity:
            for backend in candidates:
                slot = backend.slot_that_holds(ticket.affinity)
                if slot is not None and backend.load - least <= AFFINITY_SLACK:
                    return backend, slot
        backend = self.rng.choice([backend for backend in candidates if backend.load == least])
        return backend, next(iter(backend.free))

    def _forget_drained(self) -> None:
        gone = [
            backend.replica for backend in self.backends.values() if backend.draining and not backend.leases
        ]
        for replica in gone:
            del self.backends[replica]

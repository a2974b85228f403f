"""Queue, leases and choice of a replica."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from serving.core.balancer import Balancer, Held, KeyBusy, Lease, NoReplica, QueueFull, Ticket
from serving.core.health import Fault


def balancer(*slots: int, max_waiting: int = 100, role: str = "mixed", seed: int = 1) -> Balancer:
    made = Balancer(Random(seed), max_waiting, lease_seconds=600.0)
    for number, count in enumerate(slots):
        made.set_replica(number, role, count)
    return made


def ask(to: Balancer, name: str, key: str = "k", now: float = 0.0, affinity: str = "") -> Ticket:
    ticket = Ticket(name, key, now, affinity=affinity)
    to.admit(ticket, now)
    return ticket


def test_a_request_goes_to_the_least_loaded_replica() -> None:
    queue = balancer(4, 4)
    for number in range(4):
        ask(queue, str(number))
    assert Counter(lease.replica for lease in queue.bind(0.0)) == {0: 2, 1: 2}


def test_load_is_counted_per_slot() -> None:
    queue = balancer(8, 2)
    for number in range(5):
        ask(queue, str(number))
    assert Counter(lease.replica for lease in queue.bind(0.0)) == {0: 4, 1: 1}


def test_equal_replicas_share_within_a_tenth() -> None:
    queue = balancer(4, 4, 4, 4)
    served: Counter[int] = Counter()
    for number in range(4000):
        ask(queue, str(number), now=float(number))
        for lease in queue.bind(float(number)):
            served[lease.replica] += 1
            queue.release(lease, float(number))
            queue.leave(lease.ticket)
    assert max(served.values()) <= 1.1 * min(served.values())


def test_a_replica_never_gets_more_than_its_slots_and_the_rest_waits() -> None:
    queue = balancer(1, 1)
    for number in range(5):
        ask(queue, str(number))
    assert len(queue.bind(0.0)) == 2
    assert len(queue.waiting) == 3
    assert queue.bind(0.0) == []


def test_a_waiting_request_is_bound_only_when_a_slot_frees() -> None:
    queue = balancer(1, 1)
    for number in range(3):
        ask(queue, str(number), now=number)
    first, second = queue.bind(3.0)
    queue.release(second, 4.0)
    (third,) = queue.bind(4.0)
    assert (third.ticket.request_id, third.replica) == ("2", second.replica)
    assert first.slot == third.slot == 0


def test_the_queue_is_bounded_and_says_when_to_come_back() -> None:
    queue = balancer(1, max_waiting=2)
    ask(queue, "running")
    queue.bind(0.0)
    ask(queue, "a"), ask(queue, "b")
    with pytest.raises(QueueFull) as refusal:
        ask(queue, "c")
    assert 1.0 <= refusal.value.retry_after_seconds <= 90.0


def test_a_key_over_its_limit_is_refused_while_others_are_not() -> None:
    queue = balancer(1)
    queue.admit(Ticket("1", "greedy", 0.0), 0.0, key_limit=1)
    with pytest.raises(KeyBusy):
        queue.admit(Ticket("2", "greedy", 0.0), 0.0, key_limit=1)
    queue.admit(Ticket("3", "modest", 0.0), 0.0, key_limit=1)


def test_the_key_with_fewer_running_requests_goes_first() -> None:
    queue = balancer(2)
    ask(queue, "g1", "greedy", 0.0)
    lease = queue.bind(0.0)[0]
    ask(queue, "g2", "greedy", 1.0)
    ask(queue, "m1", "modest", 2.0)
    assert [bound.ticket.request_id for bound in queue.bind(3.0)] == ["m1"]
    queue.release(lease, 4.0)
    assert [bound.ticket.request_id for bound in queue.bind(4.0)] == ["g2"]


def test_without_any_replica_the_request_is_refused_at_once() -> None:
    with pytest.raises(NoReplica):
        ask(balancer(), "1")


def test_a_cancelled_prompt_keeps_its_slot_until_the_server_is_idle() -> None:
    queue = balancer(1)
    ask(queue, "1")
    (lease,) = queue.bind(0.0)
    queue.abandon(lease, 1.0, free_by=30.0)
    queue.leave(lease.ticket)
    ask(queue, "2")
    assert queue.bind(2.0) == []
    queue.confirm_idle(0, lease.slot)
    assert len(queue.bind(3.0)) == 1


def test_an_unconfirmed_slot_frees_itself_in_the_end() -> None:
    queue = balancer(1)
    ask(queue, "1")
    (lease,) = queue.bind(0.0)
    queue.abandon(lease, 1.0, free_by=30.0)
    ask(queue, "2")
    assert len(queue.bind(30.0)) == 1


def test_a_forgotten_lease_expires() -> None:
    queue = balancer(1)
    ask(queue, "1")
    (lease,) = queue.bind(0.0)
    assert queue.expire(599.0) == []
    assert queue.expire(600.0) == [lease]
    queue.release(lease, 601.0)
    assert queue.running() == 0


def test_a_follow_up_returns_to_the_slot_that_holds_its_prefix() -> None:
    queue = balancer(2, 2)
    ask(queue, "1", affinity="talk")
    (first,) = queue.bind(0.0)
    queue.release(first, 1.0, Held("talk", 100))
    for number in range(20):
        ask(queue, f"again {number}", affinity="talk", now=2.0)
        (lease,) = queue.bind(2.0)
        assert (lease.replica, lease.slot) == (first.replica, first.slot)
        queue.release(lease, 3.0, Held("talk", 100))


def test_a_much_busier_replica_is_not_waited_for_because_of_its_prefix() -> None:
    queue = balancer(4, 4)
    queue.backends[0].hold(3, Held("talk", 100))
    queue.backends[1].draining = True
    for number in range(3):
        ask(queue, str(number))
    queue.bind(0.0)
    queue.backends[1].draining = False
    ask(queue, "follow-up", affinity="talk")
    assert queue.bind(1.0)[0].replica == 1


def test_a_slot_that_was_idle_longest_is_overwritten_first() -> None:
    queue = balancer(2)
    ask(queue, "1"), ask(queue, "2")
    first, second = queue.bind(0.0)
    queue.release(second, 1.0)
    queue.release(first, 2.0)
    ask(queue, "3")
    assert queue.bind(3.0)[0].slot == second.slot


def test_a_replica_that_refuses_is_ejected_at_once_and_comes_back_on_trial() -> None:
    queue = balancer(4, 4)
    assert queue.failed(0, 0.0, "refused")
    for number in range(8):
        ask(queue, str(number))
    assert {lease.replica for lease in queue.bind(0.5)} == {1}
    assert [lease.replica for lease in queue.bind(1.0)] == [0]
    assert queue.bind(1.0) == []
    queue.succeeded(0, 2.0)
    assert not queue.backends[0].health.on_trial


def test_a_silent_replica_is_left_alone_for_longer() -> None:
    queue = balancer(1, 1)
    queue.failed(0, 0.0, "silent")
    assert not queue.backends[0].health.in_service(29.0)
    assert queue.backends[0].health.in_service(30.0)


def test_soft_failures_eject_only_in_a_row() -> None:
    queue = balancer(1, 1, 1)
    assert not queue.failed(0, 0.0, "soft")
    queue.succeeded(0, 0.0)
    assert [queue.failed(0, 0.0, "soft") for _ in range(3)] == [False, False, True]


def test_when_half_the_pool_is_out_soft_failures_eject_nobody_else() -> None:
    queue = balancer(1, 1)
    assert [queue.failed(0, 0.0, "soft") for _ in range(3)][-1]
    assert not any(queue.failed(1, 0.0, "soft") for _ in range(10))


def test_each_ejection_in_a_row_lasts_twice_as_long() -> None:
    queue = balancer(1, 1)
    queue.failed(0, 0.0, "refused")
    assert queue.backends[0].health.in_service(1.0)
    queue.failed(0, 1.0, "refused")
    assert not queue.backends[0].health.in_service(2.9)
    assert queue.backends[0].health.in_service(3.0)


def test_a_replica_that_returns_is_ramped_up() -> None:
    queue = balancer(10)
    queue.set_replica(1, "mixed", 10, ramps_from=0.0)
    for number in range(20):
        ask(queue, str(number))
    assert Counter(lease.replica for lease in queue.bind(0.0)) == {0: 10, 1: 1}
    assert len(queue.bind(15.0)) == 5
    assert len(queue.bind(30.0)) == 4


def test_a_draining_replica_finishes_and_disappears() -> None:
    queue = balancer(1, 1)
    ask(queue, "1"), ask(queue, "2")
    first, second = queue.bind(0.0)
    queue.drain_replica(first.replica)
    ask(queue, "3")
    assert queue.bind(1.0) == []
    queue.release(first, 2.0)
    assert first.replica not in queue.backends
    queue.release(second, 3.0)
    assert queue.bind(3.0)[0].replica == second.replica


def test_a_retry_goes_to_another_replica() -> None:
    queue = balancer(1, 1)
    ask(queue, "1")
    (lease,) = queue.bind(0.0)
    queue.release(lease, 1.0)
    lease.ticket.refused |= {lease.replica}
    queue.rejoin(lease.ticket, "decode", 1.0)
    assert queue.bind(1.0)[0].replica != lease.replica
    lease.ticket.refused |= {0, 1}
    with pytest.raises(NoReplica):
        queue.rejoin(lease.ticket, "decode", 2.0)


class AnyOrder(RuleBasedStateMachine):
    """Random arrivals, ends, cancels, faults and roll-outs."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.queue = Balancer(Random(3), 20, lease_seconds=50.0, handover=True)
        for number, (role, slots) in enumerate([("prefill", 1), ("decode", 3), ("decode", 2), ("mixed", 2)]):
            self.queue.set_replica(number, role, slots)
        self.leases: list[Lease] = []
        self.tickets: list[Ticket] = []
        self.count = 0

    @rule(key=st.sampled_from("abc"), seconds=st.floats(0, 20))
    def arrive(self, key: str, seconds: float) -> None:
        self.now += seconds
        self.count += 1
        ticket = Ticket(str(self.count), key, self.now)
        try:
            self.queue.admit(ticket, self.now, key_limit=8)
        except (QueueFull, KeyBusy, NoReplica):
            return
        self.tickets.append(ticket)

    @rule()
    def bind(self) -> None:
        self.leases += self.queue.bind(self.now)

    @rule(data=st.data(), how=st.sampled_from(["release", "abandon", "rejoin", "twice"]))
    def end(self, data: st.DataObject, how: str) -> None:
        if not self.leases:
            return
        lease = self.leases.pop(data.draw(st.integers(0, len(self.leases) - 1)))
        if how == "abandon":
            self.queue.abandon(lease, self.now, self.now + 10)
        else:
            self.queue.release(lease, self.now)
        if how == "twice":
            self.queue.release(lease, self.now)
        if how == "rejoin" and lease.ticket in self.queue.open:
            self.queue.rejoin(lease.ticket, "decode", self.now)
        else:
            self.queue.leave(lease.ticket)

    @rule(replica=st.integers(0, 3), fault=st.sampled_from(["soft", "refused", "silent"]))
    def fault(self, replica: int, fault: Fault) -> None:
        self.queue.failed(replica, self.now, fault)

    @rule(replica=st.integers(0, 3))
    def recover(self, replica: int) -> None:
        self.queue.succeeded(replica, self.now)

    @invariant()
    def no_slot_is_given_twice(self) -> None:
        for backend in self.queue.backends.values():
            assert backend.running <= backend.slots
            parts = [*backend.leases, *backend.unconfirmed, *backend.free]
            assert sorted(parts) == list(range(backend.slots))
        assert len(self.queue.waiting) == len(set(map(id, self.queue.waiting)))

    def teardown(self) -> None:
        self.queue.expire(self.now + 1000)
        for ticket in list(self.queue.open):
            self.queue.leave(ticket)
        assert self.queue.running() == 0
        assert not self.queue.waiting
        assert all(backend.running == 0 for backend in self.queue.backends.values())


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

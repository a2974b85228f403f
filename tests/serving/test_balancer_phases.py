"""The queue when prompts are computed on one kind of replica and answers on another."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from serving.core.balancer import Balancer, Held, Ticket
from tests.serving.test_balancer import ask


def disaggregated(prefill: int = 1, decode_slots: int = 2) -> Balancer:
    made = Balancer(Random(1), 100, lease_seconds=600.0, handover=True)
    for number in range(prefill):
        made.set_replica(number, "prefill", 1)
    made.set_replica(10, "decode", decode_slots)
    return made


def test_a_request_passes_prefill_then_decode() -> None:
    queue = disaggregated()
    ticket = ask(queue, "1")
    (lease,) = queue.bind(0.0)
    assert (ticket.phase, lease.replica) == ("prefill", 0)
    queue.release(lease, 1.0)
    queue.rejoin(ticket, "decode", 1.0)
    assert queue.bind(1.0)[0].replica == 10


def test_prefill_does_not_run_further_ahead_than_decode_has_slots() -> None:
    queue = disaggregated(prefill=1, decode_slots=2)
    for number in range(10):
        ask(queue, str(number))
    started = 0
    for step in range(10):
        for lease in queue.bind(float(step)):
            if lease.replica == 0:
                started += 1
                queue.release(lease, float(step))
                queue.rejoin(lease.ticket, "decode", float(step))
    assert started == 4
    assert (queue.waiting_in("decode"), queue.running()) == (2, 2)


@pytest.mark.parametrize(("tokens", "phase"), [(90, "prefill"), (150, "decode"), (400, "prefill")])
def test_only_a_short_follow_up_goes_straight_to_where_its_conversation_lies(tokens: int, phase: str) -> None:
    queue = disaggregated()
    queue.backends[10].hold(1, Held("talk", 100))
    ticket = Ticket("1", "k", 0.0, affinity="talk", prompt_tokens=tokens)
    queue.admit(ticket, 0.0)
    (lease,) = queue.bind(0.0)
    assert ticket.phase == phase
    assert (lease.replica, lease.slot) == ((10, 1) if phase == "decode" else (0, 0))


def test_a_follow_up_whose_place_was_taken_is_handed_over_after_all() -> None:
    queue = disaggregated(decode_slots=1)
    queue.backends[10].hold(0, Held("talk", 100))
    follow_up = Ticket("1", "k", 0.0, affinity="talk", prompt_tokens=150)
    queue.admit(follow_up, 0.0)
    other = Ticket("2", "k", 0.0)
    queue.open.add(other)
    queue.rejoin(other, "decode", 0.0)
    other.is_fresh, other.enqueued_at = False, -1.0
    assert [lease.ticket.request_id for lease in queue.bind(0.0)] == ["2"]
    queue.bind(0.0)
    assert follow_up.phase == "prefill"


def test_without_prefill_replicas_in_service_prompts_go_to_decode() -> None:
    queue = disaggregated()
    ticket = ask(queue, "1")
    queue.failed(0, 0.0, "refused")
    assert queue.bind(0.0)[0].replica == 10
    assert ticket.phase == "decode"


def test_without_decode_replicas_a_prefill_replica_serves_whole_requests() -> None:
    queue = disaggregated()
    queue.failed(10, 0.0, "refused")
    ticket = ask(queue, "1")
    assert ticket.phase == "decode"
    assert queue.bind(0.0)[0].replica == 0


def test_with_handover_switched_off_every_replica_serves_whole_requests() -> None:
    queue = disaggregated(prefill=2, decode_slots=2)
    queue.handover = False
    for number in range(4):
        ask(queue, str(number))
    assert Counter(lease.replica for lease in queue.bind(0.0)) == {0: 1, 1: 1, 10: 2}

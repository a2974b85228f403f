"""Sentences that go with a plan say what binds, with its numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inventory.core.quantities import counted, seconds_text
from planner.core.catalogue import Catalogue
from planner.core.explain import bytes_text, choice_sentence, load_sentence, with_queue
from planner.core.margins import comparison, margins, pace_of
from planner.core.search import SearchSettings, find_plan
from tests.planner.cluster import LAN, QWEN, device, model, paper_problem, problem, table, with_workload

QUICK = SearchSettings(population=12, generations=5)


def test_blocks_in_ram_are_named_as_what_binds() -> None:
    plan = find_plan(paper_problem(QWEN, 1, 2, allow_mixed=False), QUICK)
    assert plan.bottleneck.what == "decode"
    assert plan.bottleneck.device in plan.replicas[plan.bottleneck.replica].devices
    assert "blocks in RAM" in plan.bottleneck.text


def test_a_slow_prefill_is_named_as_what_binds() -> None:
    reader = device("reader", 0.001, prefill=table(1.0))
    cluster = problem([reader, device("writer", 0.0001, prefill=table(9.0))], arrival_seconds=1.0)
    plan = find_plan(cluster, QUICK)
    assert (plan.bottleneck.what, plan.bottleneck.device) == ("prefill", "reader")
    assert plan.bottleneck.text.startswith(
        "The workload asks for 10 times what prompt processing can do, so the queue grows: "
    )


def test_too_much_work_is_said_as_what_it_does_to_the_queue() -> None:
    assert load_sentence("Token generation", 8.02) == (
        "The workload asks for 8.0 times what token generation can do, so the queue grows"
    )
    assert "1.02 times" in load_sentence("Token generation", 1.02)
    assert load_sentence("Token generation", 0.4) == "Token generation is busiest, at 40 % of what it can do"


def test_next_to_no_work_is_not_called_a_limit_that_binds() -> None:
    assert load_sentence("Token generation", 0.0001) == (
        "Token generation would be the first limit, though less than 1 % of what it can do is asked"
    )
    assert load_sentence("Moving the KV cache", 3488589502288.0).count(",") == 5


def test_a_burst_that_ends_before_anybody_waits_is_not_said_to_queue() -> None:
    reader = device("reader", 0.001, prefill=table(1.0))
    cluster = problem([reader, device("writer", 0.0001, prefill=table(9.0))], arrival_seconds=1.0)
    lone = find_plan(with_workload(cluster, requests=1), QUICK)
    assert lone.predicted.max_wait_seconds == 0
    assert "can do, but the burst ends before a queue forms: " in lone.bottleneck.text
    busy = with_queue(lone.bottleneck, 30.0)
    assert "can do, so the queue grows: " in busy.text
    assert with_queue(busy, 0.0) == lone.bottleneck


def test_one_of_a_thing_is_no_plural() -> None:
    assert (counted(1, "block"), counted(2, "block")) == ("1 block", "2 blocks")


def test_a_mixed_replica_says_where_the_time_of_a_request_goes() -> None:
    lone = device("lone", 0.001, prefill=table(0.05))
    cluster = problem([lone], arrival_seconds=1.0, max_slots=1, allow_mixed=True)
    plan = find_plan(cluster, QUICK)
    replica, workload = plan.replicas[0], cluster.workload
    prompt = workload.input_tokens / replica.prefill_tokens_per_second
    answer = workload.output_tokens * replica.tpot_seconds
    assert plan.mode == "mixed"
    assert (
        f"{seconds_text(prompt)} for its prompt and {seconds_text(answer)} for its answer"
        in plan.bottleneck.text
    )
    assert "each step of 1 token " in plan.bottleneck.text
    whole = workload.output_tokens / replica.decode_tokens_per_second
    assert prompt + answer == pytest.approx(whole)


def test_a_port_that_carries_the_caches_is_named_as_what_binds() -> None:
    shape = model(10, kv_handoff_bytes_per_token=1e6)
    cluster = problem([device("a", 0.0001), device("b", 0.0001)], model=shape, links=LAN)
    plan = find_plan(cluster, QUICK)
    assert plan.bottleneck.what == "network"
    assert "carries 600 MB for each request" in plan.bottleneck.text


def test_margins_tell_the_memory_left_and_why_no_more_slots() -> None:
    plan = find_plan(paper_problem(QWEN), QUICK)
    told = margins(paper_problem(QWEN), plan)
    assert {one.replica for one in told} == set(range(len(plan.replicas)))
    tightest = [one for one in told if one.device]
    assert len(tightest) == len(plan.replicas)
    assert all("GB" in one.text for one in tightest)
    text = " ".join(one.text for one in told)
    assert "would not fit in memory" in text or "the floor is 15" in text


def test_margins_name_the_policys_limit_of_slots() -> None:
    cluster = problem([device("a", 0.001), device("b", 0.001)], max_slots=2)
    told = [one.text for one in margins(cluster, find_plan(cluster, QUICK))]
    assert "2 slots is the most that the policy allows (2)." in told


@pytest.mark.parametrize("numbers", [(1,), (1, 2), (1, 2, 5, 6)])
@pytest.mark.parametrize("runtime", ["serial", "overlapped"])
def test_other_numbers_of_slots_are_told_in_the_measures_of_the_plan(
    numbers: tuple[int, ...], runtime: str
) -> None:
    cluster = paper_problem(QWEN, *numbers, allow_mixed=True, runtime=runtime)
    plan = find_plan(cluster, QUICK)
    told = [one for one in margins(cluster, plan) if one.text.startswith("With ")]
    assert told
    for one in told:
        replica = plan.replicas[one.replica]
        is_mixed = replica.role == "mixed" and not one.text.startswith("With 1 slot ")
        assert ("and prompts in between" in one.text) == is_mixed
        if "the floor is" not in one.text:
            assert f"(now {seconds_text(replica.tpot_seconds)})" in one.text


def test_with_as_many_slots_as_now_nothing_would_change() -> None:
    cluster = paper_problem(QWEN, 1, 2, allow_mixed=True)
    replica = find_plan(cluster, QUICK).replicas[0]
    pace = pace_of(Catalogue(cluster), replica, replica.slots)
    assert pace is not None
    assert (pace.token_seconds, pace.rate) == pytest.approx(
        (replica.tpot_seconds, replica.requests_per_second)
    )


def test_comparison_lists_every_other_planner() -> None:
    cluster = with_workload(paper_problem(QWEN, 1, 2, 5, 6), arrival_seconds=0.5)
    told = comparison(find_plan(cluster, QUICK))
    assert len(told) == 5
    assert any(one.startswith("Adapted Splitwise: longest wait ") for one in told)


def test_assumptions_follow_the_policy() -> None:
    cluster = paper_problem(QWEN, 1, 2, 5, 6)
    serial = find_plan(cluster, QUICK).assumptions
    paper = replace(
        cluster, policy=replace(cluster.policy, runtime="overlapped", topology="chain", handover=False)
    )
    other = find_plan(paper, QUICK).assumptions
    assert "walks the stages in turn" in serial[0] and "as in the paper" in other[0]
    assert "costs nothing" in other[-2]


def test_a_plan_says_that_the_simulation_chose_it_among_equals() -> None:
    plan = find_plan(paper_problem(QWEN, 1, 2, 5, 6), QUICK)
    assert "those of the simulation, which chose among " in plan.assumptions[-1]
    assert choice_sentence(5, 3, is_exhausted=False).endswith(
        "5 plans, 3 of them with no longer wait by the formula than this one."
    )


def test_sizes_read_like_a_person_would_say_them() -> None:
    assert (bytes_text(11.5e9), bytes_text(94e6)) == ("11.5 GB", "94 MB")

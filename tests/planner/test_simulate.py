"""The simulator where the answer is known in closed form."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.core.assembly import build_plan, closed_form_proof
from planner.core.burst import Requests, sample
from planner.core.catalogue import Catalogue
from planner.core.memory import Floats
from planner.core.servers import Server, servers
from planner.core.simulate import LATE, ROUTERS, simulate
from tests.planner.cluster import QWEN, paper_problem, with_workload


def constant(seconds: float) -> Callable[[Floats], Floats]:
    return lambda tokens: np.full(len(tokens), seconds)


def per_token(seconds: float) -> Callable[[Floats], Floats]:
    return lambda tokens: seconds * tokens


def prefill(seconds: float, *, handover: float = 0.0, interval: float | None = None) -> Server:
    busy = constant(seconds if interval is None else interval)
    return Server("prefill", 1, (0.0,), constant(seconds), busy, constant(handover))


def decode(slots: int, step: float, *, handover: float = 0.0) -> Server:
    nothing = constant(0.0)
    return Server("decode", slots, (0.0, *[step] * slots), nothing, nothing, constant(handover))


def burst(n: int, every_seconds: float, *, tokens: float = 100.0) -> Requests:
    return Requests(np.arange(n) * every_seconds, np.full(n, 600.0), np.full(n, tokens))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 40),
    st.sampled_from([0.25, 0.5, 1.0]),
    st.integers(1, 5),
    st.sampled_from([0.01, 0.125]),
    st.sampled_from(ROUTERS),
)
def test_one_decode_replica_is_a_queue_with_s_servers(
    n: int, every: float, slots: int, step: float, router: str
) -> None:
    free = [0.0] * slots
    waits = []
    for k in range(n):
        start = max(k * every, free[k % slots])
        free[k % slots] = start + 100 * step
        waits.append(start - k * every)
    told = simulate([prefill(0.0), decode(slots, step)], burst(n, every), router)
    assert told.wait_seconds.tolist() == pytest.approx(waits)
    assert told.tokens_per_second.tolist() == pytest.approx([1 / step] * n)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 30),
    st.floats(0.1, 2.0),
    st.floats(0.1, 2.0),
    st.floats(0.1, 2.0),
    st.sampled_from(ROUTERS),
)
def test_prefill_and_port_in_tandem_follow_lindley(
    n: int, every: float, seconds: float, handover: float, router: str
) -> None:
    fleet = [prefill(seconds, handover=handover), decode(100, 1e-6)]
    waits, free, port = [], 0.0, 0.0
    for k in range(n):
        start = max(k * every, free)
        free = start + seconds
        begin = max(free, port)
        port = begin + handover
        waits.append(start - k * every + begin - free)
    assert simulate(fleet, burst(n, every), router).wait_seconds.tolist() == pytest.approx(waits)


def test_a_pipelined_prefill_takes_the_next_prompt_before_the_last_is_done() -> None:
    fleet = [prefill(3.0, interval=1.0), decode(100, 0.001)]
    told = simulate(fleet, burst(5, 1.0))
    assert told.max_wait_seconds == 0.0
    assert told.ttft_seconds.tolist() == pytest.approx([3.001] * 5)


def test_the_receiving_port_is_a_queue_too() -> None:
    fleet = [prefill(0.0), prefill(0.0), decode(100, 0.001, handover=2.0)]
    told = simulate(fleet, burst(4, 1.0))
    assert told.wait_seconds.tolist() == pytest.approx([2.0, 3.0, 4.0, 5.0])


def test_steps_grow_with_the_busy_slots() -> None:
    shared = Server("decode", 2, (0.0, 1.0, 2.0), constant(0.0), constant(0.0), constant(0.0))
    told = simulate([prefill(0.0), shared], burst(2, 5.0, tokens=10.0))
    # Alone for 5 s (5 tokens), then 5 tokens at half speed; the second finishes alone.
    assert told.finished_seconds.tolist() == pytest.approx([15.0, 20.0])


def test_a_prompt_on_a_mixed_replica_stalls_the_others_piece_by_piece() -> None:
    both = Server("mixed", 2, (0.0, 0.1, 0.1), per_token(0.001), per_token(0.001), constant(0.0), 512)
    requests = Requests(np.array([0.0, 1.024]), np.array([1024.0, 1024.0]), np.array([100.0, 100.0]))
    told = simulate([both], requests)
    # 1.024 s of prompt in two pieces of 0.512 s, each followed by a step of 0.1 s of the first request.
    assert told.ttft_seconds[1] == pytest.approx(1.024 + 2 * 0.1 + 0.1)
    assert told.finished_seconds[0] == pytest.approx(1.024 + 10.0 + 1.024)
    assert told.max_wait_seconds == 0.0


def test_prompts_on_a_mixed_replica_wait_for_each_other() -> None:
    both = Server("mixed", 3, (0.0, 1e-6, 1e-6, 1e-6), constant(2.0), constant(2.0), constant(0.0))
    assert simulate([both], burst(3, 0.0, tokens=1.0)).wait_seconds.tolist() == pytest.approx(
        [0.0, 2.0, 4.0], abs=1e-3
    )


def test_late_binding_waits_no_longer_than_joining_queues_that_ignore_slots() -> None:
    fleet = [prefill(0.0), decode(8, 0.1), decode(1, 0.1)]
    waits = {router: simulate(fleet, burst(60, 0.2), router).max_wait_seconds for router in ROUTERS}
    assert waits[LATE] <= waits["slot-jsq"] <= waits["classic-jsq"]


def test_every_request_ends_and_holds_its_plans_pace() -> None:
    problem = with_workload(paper_problem(QWEN), input_cv=0.25, output_cv=0.4, arrivals="poisson")
    catalogue = Catalogue(problem)
    choices = (
        ((2,), catalogue.options("prefill", (2,))[0]),
        ((0, 1), catalogue.options("decode", (0, 1))[0]),
    )
    plan = build_plan(catalogue, choices, closed_form_proof("by hand", 2), 0)
    told = simulate(servers(problem, plan), sample(problem.workload, np.random.default_rng(1)))
    assert np.isfinite(told.finished_seconds).all() and (told.finished_seconds > 0).all()
    assert told.slowest_tokens_per_second >= problem.policy.min_tokens_per_second
    full = servers(problem, plan)[1].step_seconds[-1]
    assert full == pytest.approx(plan.replicas[1].tpot_seconds, rel=1e-12)


def mixed(slots: int, prompt: float, step: float) -> Server:
    return Server("mixed", slots, (0.0, *[step] * slots), constant(prompt), constant(prompt), constant(0.0))


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from([86_400.0, 1e6, 1e12, 1e30]) | st.floats(20.0, 1e6),
    st.integers(1, 10_000),
    st.sampled_from([[mixed(3, 2.0, 0.1)], [prefill(2.0, handover=1.0), decode(3, 0.1, handover=1.0)]]),
)
def test_however_late_a_request_comes_it_is_served_as_the_first_one(
    every: float, n: int, fleet: list[Server]
) -> None:
    told = simulate(fleet, burst(n, every))
    first = simulate(fleet, burst(1, every))
    assert told.max_wait_seconds == pytest.approx(0.0, abs=1e-6)
    assert told.tokens_per_second.tolist() == pytest.approx(first.tokens_per_second.tolist() * n)
    assert told.ttft_seconds.tolist() == pytest.approx(first.ttft_seconds.tolist() * n)


def test_a_queue_that_grows_for_a_year_is_still_lindleys() -> None:
    told = simulate([mixed(1, 3_600.1, 1.3)], burst(10_000, 3_600.0))
    assert told.wait_seconds.tolist() == pytest.approx([130.1 * k for k in range(10_000)])
    assert told.tokens_per_second.tolist() == pytest.approx([1 / 1.3] * 10_000)


def test_a_burst_with_long_pauses_is_as_several_bursts() -> None:
    fleet = [prefill(0.4, handover=0.3), decode(2, 0.01), decode(1, 0.02)]
    one = burst(50, 0.25)
    later = Requests(
        np.concatenate([one.arrival_seconds, one.arrival_seconds + 2.0**50]),
        np.tile(one.input_tokens, 2),
        np.tile(one.output_tokens, 2),
    )
    told, alone = simulate(fleet, later), simulate(fleet, one)
    assert alone.max_wait_seconds > 1.0
    assert told.wait_seconds.tolist() == pytest.approx(np.tile(alone.wait_seconds, 2).tolist())
    assert told.finished_seconds[-1] == pytest.approx(2.0**50)


def test_drawn_lengths_have_the_workloads_mean_and_spread() -> None:
    workload = with_workload(paper_problem(QWEN), requests=100_000, output_cv=0.4).workload
    drawn = sample(workload, np.random.default_rng(0))
    assert drawn.input_tokens == pytest.approx(np.full(100_000, 576.0))
    assert drawn.output_tokens.mean() == pytest.approx(746, rel=0.01)
    assert drawn.output_tokens.std() / drawn.output_tokens.mean() == pytest.approx(0.4, rel=0.02)

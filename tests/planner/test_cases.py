"""Cases with answers known from elsewhere: worked by hand, or printed in the paper's tables."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from planner.core import columns
from planner.core.assembly import build_plan, closed_form_proof
from planner.core.burst import Requests
from planner.core.catalogue import Catalogue, Option
from planner.core.congestion import burst_wait, paper_wait
from planner.core.exact import PartitionSolver, devices_of, solve
from planner.core.forecast import bursts, forecast
from planner.core.latency import Costs, hop_count, link_seconds
from planner.core.memory import Floats, block_sums, gpu_blocks
from planner.core.objective import PAPER, WAIT, Objective
from planner.core.partition import Split, paper_dp, selection_rule
from planner.core.partitions import Offers, Partitions
from planner.core.problem import Device, Link, Workload
from planner.core.roles import assign
from planner.core.servers import Server
from planner.core.simulate import simulate
from planner.core.slots import Group
from tests.planner.cluster import (
    GPT_OSS,
    LAN,
    QWEN,
    device,
    model,
    paper_problem,
    problem,
    table,
    with_workload,
)

BLOCK = np.arange(11.0)
A, B = BLOCK * 0.001, BLOCK * 0.002


def constant(seconds: float) -> Callable[[Floats], Floats]:
    return lambda tokens: np.full(len(tokens), seconds)


def server(
    role: str, *, slots: int = 1, prompt: float = 0.0, step: float = 0.0, handover: float = 0.0
) -> Server:
    steps = (0.0, *[step] * slots)
    return Server(role, slots, steps, constant(prompt), constant(prompt), constant(handover))


def burst(requests: int, every_seconds: float, output_tokens: float) -> Requests:
    ones = np.ones(requests)
    return Requests(np.arange(requests) * every_seconds, 600 * ones, output_tokens * ones)


def test_d1_the_tenth_smallest_cost_is_the_bottleneck() -> None:
    stages = np.array([A, B])
    for found in (selection_rule(stages, stages, [0.0]), paper_dp(stages, stages, [0.0])):
        assert found is not None
        assert found.counts == (7, 3)
        assert found.bottleneck_seconds == pytest.approx(0.007)
        assert found.pass_seconds == pytest.approx(0.013)


def test_d2_the_head_goes_where_it_costs_least() -> None:
    workers, masters = np.array([A, B]), np.array([A + 0.003, B + 0.001])
    for found in (selection_rule(workers, masters, [0.0]), paper_dp(workers, masters, [0.0])):
        assert found is not None
        assert (found.counts, found.master) == ((7, 3), 1)
        assert found.bottleneck_seconds == pytest.approx(0.007)
    forced = paper_dp(workers, np.array([A + 0.003, np.full(11, np.inf)]), [0.0])
    assert forced is not None
    assert (forced.counts, forced.bottleneck_seconds) == ((6, 4), pytest.approx(0.009))


@pytest.mark.parametrize(
    ("slots", "split", "seconds"), [(2, (4, 4), 0.024), (4, (1, 7), 0.036), (6, None, None)]
)
def test_d3_kv_of_blocks_in_ram_stays_on_the_gpu(
    slots: int, split: tuple[int, int] | None, seconds: float | None
) -> None:
    shape = model(8, block_bytes=2.0, block_resident_bytes=0.5, kv_slot_block_bytes=0.25)
    tables = replace(table(0.001), cpu_block_seconds=(0.005, 0.005))
    here = device("one", 0.001, memory=14.0, ram=100.0, decode=tables)
    on_gpu = int(gpu_blocks(block_sums(shape), shape, here, np.array([slots]), False)[0, 8])
    assert (None if on_gpu < 0 else (on_gpu, 8 - on_gpu)) == split
    costs = Costs(problem([here], model=shape)).table(0, "decode", (slots,), (1.0,))
    assert costs.seconds[0, 0, 8] == (pytest.approx(seconds) if seconds else np.inf)


def test_d4_slots_are_scanned_up_to_the_floor() -> None:
    def kind(name: str) -> Device:
        return device(name, 0.0, decode=table(0.003, per_batch=0.001))

    overlapped = {"runtime": "overlapped", "topology": "chain", "min_tokens_per_second": 7.0, "max_slots": 64}
    both = Catalogue(problem([kind("a"), kind("b")], **overlapped))
    alone = both.options("decode", (0,))[0]
    assert (alone.slots, alone.pass_seconds) == (12, pytest.approx(0.140))
    assert alone.bare_requests_per_second * 300 == pytest.approx(85.7142857)
    paired = both.options("decode", (0, 0))[0]
    assert (paired.micro_batch, paired.slots, paired.counts) == (12, 24, (5, 5))
    assert paired.bottleneck_seconds == pytest.approx(0.070)
    assert paired.bare_requests_per_second * 300 == pytest.approx(171.4285714)


@pytest.mark.parametrize(("arrival_seconds", "wait"), [(1.0, 1.5), (2.0, 0.0), (0.1, 2.4)])
def test_d5_the_papers_wait(arrival_seconds: float, wait: float) -> None:
    assert float(paper_wait(576, 588, 1152, 294, arrival_seconds)) == pytest.approx(wait)


def option(group: Group, role: str, requests_per_second: float) -> Option:
    return Option(
        group=group,
        role=role,
        slots=1,
        micro_batch=1,
        master=0,
        counts=(1,) * len(group),
        bottleneck_seconds=1.0,
        pass_seconds=1.0,
        tpot_seconds=1.0,
        prefill_seconds=1.0,
        handover_seconds=0.0,
        requests_per_second=requests_per_second,
        bare_requests_per_second=requests_per_second,
    )


class GivenSpeeds:
    """Stands in for a catalogue: the prefill and decode speed of each replica is given."""

    def __init__(self, speeds: dict[Group, tuple[float, float]]) -> None:
        self.speeds = speeds

    def prefill(self, group: Group) -> Option:
        return option(group, "prefill", self.speeds[group][0] / 600)

    def options(self, role: str, group: Group) -> tuple[Option, ...]:
        return (option(group, role, self.speeds[group][1] / 300),)


def test_d6_the_fast_reader_prefills_and_the_others_decode() -> None:
    speeds = GivenSpeeds({(0,): (1000, 100), (1,): (500, 200), (2,): (400, 150)})
    found = assign(speeds, [(0,), (1,), (2,)], Objective(PAPER, problem([device("a", 1)])))
    assert found is not None
    assert [one.role for one in found.options if one] == ["prefill", "decode", "decode"]
    assert found.seconds == pytest.approx(1.357143, abs=1e-6)


D7 = {
    "a": (300, 30),
    "b": (0, 0),
    "c": (0, 0),
    "d": (100, 50),
    "ab": (330, 45),
    "ac": (330, 45),
    "ad": (420, 85),
    "bc": (200, 60),
    "bd": (250, 90),
    "cd": (220, 80),
    "abc": (380, 70),
    "abd": (450, 95),
    "acd": (450, 95),
    "bcd": (260, 100),
    "abcd": (500, 110),
}


def offers(options: list[Option]) -> Offers:
    masks = np.array([sum(1 << device for device in one.group) for one in options])
    rates = np.array([one.requests_per_second for one in options])
    return Offers(masks, np.ones(len(options), dtype=np.int64), rates, options.__getitem__)


def test_d7_best_of_all_partitions_roles_and_idle_devices() -> None:
    speeds = {sum(1 << "abcd".index(letter) for letter in name): both for name, both in D7.items()}
    prefill = offers([option(devices_of(m), "prefill", p / 600) for m, (p, _) in sorted(speeds.items()) if p])
    decode = offers([option(devices_of(m), "decode", d / 300) for m, (_, d) in sorted(speeds.items()) if d])
    partitions = Partitions(4, limit=4, allow_idle=True)
    solver = PartitionSolver(partitions, Objective(PAPER, problem([device("a", 1)])))
    best = min(solver.disaggregated(prefill, decode), key=lambda plan: plan.seconds)
    assert best.seconds == pytest.approx(4.627273, abs=1e-6)
    roles = {(one.role, "".join("abcd"[k] for k in devices)) for devices, one in best.choices}
    assert roles == {("prefill", "a"), ("decode", "bc"), ("decode", "d")}


def test_d8_moving_the_kv_cache_is_a_stage() -> None:
    qwen, gpt_oss = paper_problem(QWEN), paper_problem(GPT_OSS)
    assert qwen.model.handoff_bytes(2291) == 225_214_464
    assert gpt_oss.model.handoff_bytes(2291) == 59_449_344
    seconds = qwen.model.handoff_bytes(2291) / 115e6
    assert seconds == pytest.approx(1.95839, abs=1e-5)
    assert gpt_oss.model.handoff_bytes(2291) / 115e6 == pytest.approx(0.51695, abs=1e-5)
    host = server("prefill", prompt=0.05, handover=seconds)
    plenty = server("decode", slots=100, step=0.001)
    arrivals = burst(100, 1.0, 100)
    assert simulate([host, plenty], arrivals).max_wait_seconds == pytest.approx(94.88, abs=0.05)
    assert simulate([host, host, plenty], arrivals).max_wait_seconds == 0.0
    ignored = server("prefill", prompt=0.05)
    assert simulate([ignored, plenty], arrivals).max_wait_seconds == 0.0
    workload = Workload(2291, 100, 1.0, 100, 8192)
    assert float(burst_wait(1 / seconds, 1e9, 100, workload)) == pytest.approx(94.88, abs=0.05)


@pytest.mark.parametrize("runtime", ["serial", "overlapped"])
def test_d8_without_the_hand_over_no_port_binds_in_formula_bound_and_simulator(runtime: str) -> None:
    counted = with_workload(
        paper_problem(QWEN, 1, 2, 5, 6, allow_mixed=False, runtime=runtime),
        input_tokens=2291,
        output_tokens=20,
        arrival_seconds=0.5,
    )
    ignored = replace(counted, policy=replace(counted.policy, handover=False))
    waits = []
    for cluster in (counted, ignored):
        catalogue, objective = Catalogue(cluster), Objective("wait", cluster)
        *_, exact = solve(catalogue, objective, False)
        *_, generated = columns.generate(catalogue, objective, [], False)
        best = exact.plans[0]
        plan = build_plan(catalogue, best.choices, closed_form_proof("exact", 1), 0)
        told = forecast(cluster, plan, bursts(cluster.workload, 0))
        assert told.max_wait_seconds == pytest.approx(best.seconds, rel=0.05, abs=0.5)
        assert generated.bound_seconds is not None and generated.bound_seconds <= best.seconds + 1e-6
        waits.append(best.seconds)
        for _, option in best.choices:
            is_free = option.handover_seconds == 0.0 and (
                option.requests_per_second == option.bare_requests_per_second
            )
            assert is_free == (cluster is ignored)
    assert waits[1] < 0.9 * waits[0]


@pytest.mark.parametrize("router", ["late", "slot-jsq", "classic-jsq"])
def test_d9_the_simulator_sees_the_finite_slots(router: str) -> None:
    fleet = [server("prefill", prompt=0.05), server("decode", slots=10, step=0.1)]
    assert simulate(fleet, burst(35, 0.5, 100), router).max_wait_seconds == pytest.approx(15.0)


def test_d9_the_formula_is_close_but_not_equal() -> None:
    workload = Workload(600, 100, 0.5, 35, 1024)
    assert float(burst_wait(20.0, 1.0, 10, workload)) == pytest.approx(13.0)


@pytest.mark.parametrize("requests", [1, 35])
@pytest.mark.parametrize("rates", [(0.0, 1.0), (1.0, 0.0), (0.0, 0.0)])
def test_a_phase_without_a_replica_waits_and_is_loaded_without_end(
    requests: int, rates: tuple[float, float]
) -> None:
    here = with_workload(paper_problem(QWEN), requests=requests, arrival_seconds=1e-12)
    with np.errstate(all="raise", under="ignore"):
        waits = burst_wait(*rates, [0, 10], here.workload)
        load = Objective(WAIT, here).utilisation(*rates)
        assert float(Objective(WAIT, here).utilisation(2.0, 4.0)) == pytest.approx(0.5e12)
    assert waits.tolist() == [math.inf, math.inf] and float(load) == math.inf


def test_d10_a_star_hops_twice_for_every_worker() -> None:
    hop = float(link_seconds(np.array(2048 * 4.0), Link(115e6, 0.00035)))
    assert hop_count(3, "chain") * hop == pytest.approx(0.84247e-3, rel=1e-4)
    assert hop_count(3, "star") * hop == pytest.approx(1.68495e-3, rel=1e-4)


def printed_split(model_name: str, numbers: list[int], slots: int) -> tuple[list[tuple[int, int]], Split]:
    """G-C of each device at exactly these slots, with the paper's assumptions."""
    here = paper_problem(model_name, runtime="overlapped", topology="chain")
    costs, batch = Costs(here), slots // len(numbers)
    kinds = [here.kind_of[number - 1] for number in numbers]
    tables = [costs.table(kind, "decode", (slots,), (float(batch),)) for kind in kinds]
    hop = float(link_seconds(costs.activation_bytes(np.array(batch)), LAN))
    stages = [np.array([one.seconds[side, 0] for one in tables]) for side in (0, 1)]
    found = selection_rule(stages[0], stages[1], [hop] * (len(numbers) - 1))
    dp = paper_dp(stages[0], stages[1], [hop] * (len(numbers) - 1))
    assert found is not None and dp is not None
    assert found.bottleneck_seconds == pytest.approx(dp.bottleneck_seconds, rel=1e-12)
    split = []
    for k, (one, n) in enumerate(zip(tables, found.counts, strict=True)):
        on_gpu = int(one.gpu_blocks[int(k == found.master), 0, n])
        split.append((on_gpu, n - on_gpu))
    return split, found


@pytest.mark.parametrize(
    ("model_name", "numbers", "slots", "printed"),
    [
        (QWEN, [1, 2], 10, [(13, 19), (5, 11)]),
        (QWEN, [1, 5, 6], 9, [(15, 15), (9, 0), (9, 0)]),
        (QWEN, [3, 6], 8, [(36, 0), (12, 0)]),
        (QWEN, [2, 6], 4, [(6, 22), (20, 0)]),
        (QWEN, [5, 6], 2, [(22, 0), (26, 0)]),
        (QWEN, [2, 7, 8], 9, [(7, 3), (19, 0), (19, 0)]),
        (GPT_OSS, [2, 7], 14, [(5, 1), (18, 0)]),
    ],
)
def test_r1_splits_equal_the_papers_tables(
    model_name: str, numbers: list[int], slots: int, printed: list[tuple[int, int]]
) -> None:
    assert printed_split(model_name, numbers, slots)[0] == printed


@pytest.mark.parametrize(
    ("model_name", "number", "printed"),
    [(GPT_OSS, 1, (20, 4)), (QWEN, 1, (26, 22)), (GPT_OSS, 2, (5, 19)), (QWEN, 2, (9, 39))],
)
def test_r1_prefill_alone_equals_the_papers_tables(
    model_name: str, number: int, printed: tuple[int, int]
) -> None:
    here = paper_problem(model_name)
    blocks = here.model.blocks
    chosen = here.devices[number - 1]
    on_gpu = int(gpu_blocks(block_sums(here.model), here.model, chosen, np.array([1]), True)[0, blocks])
    assert (on_gpu, blocks - on_gpu) == printed


def test_r1_an_m2_max_holds_qwen_with_four_slots_and_not_five() -> None:
    here = paper_problem(QWEN)
    on_gpu = gpu_blocks(block_sums(here.model), here.model, here.devices[2], np.array([4, 5]), True)[:, 48]
    assert on_gpu.tolist() == [48, -1]


def test_r1_four_devices_give_the_plan_of_table_16() -> None:
    here = paper_problem(
        QWEN,
        1,
        2,
        5,
        6,
        runtime="overlapped",
        topology="chain",
        min_tokens_per_second=16.15,
        allow_mixed=False,
    )
    here = with_workload(here, arrival_seconds=0.1)
    *_, last = solve(Catalogue(here), Objective(PAPER, here), allow_mixed=False)
    best = last.plans[0]
    assert best.seconds == pytest.approx(6.4475, abs=1e-4)
    names = {(one.role, one.slots, tuple(here.devices[k].name for k in ks)) for ks, one in best.choices}
    assert names == {("prefill", 1, ("Dev.5", "Dev.6")), ("decode", 10, ("Dev.1", "Dev.2"))}

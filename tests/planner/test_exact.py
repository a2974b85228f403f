"""The exact solver against brute force, and what must hold for every optimum."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.core.catalogue import Catalogue, Option
from planner.core.evolve import EvolveSettings, evolve
from planner.core.exact import solve
from planner.core.latency import Costs
from planner.core.objective import Objective
from planner.core.problem import LatencyTable, Link, Problem
from tests.planner.cluster import GPT_OSS, QWEN, paper_problem, random_problem, with_workload

SEEDS = st.integers(0, 10**6)
RUNTIMES = st.sampled_from(["serial", "overlapped"])


def partitions(devices: tuple[int, ...]) -> Iterator[list[tuple[int, ...]]]:
    """All ways to divide the devices into groups."""
    if not devices:
        yield []
        return
    first, rest = devices[0], devices[1:]
    for smaller in partitions(rest):
        yield [(first,), *smaller]
        for k, group in enumerate(smaller):
            yield [*smaller[:k], (first, *group), *smaller[k + 1 :]]


def brute_force(problem: Problem, objective: Objective, allow_mixed: bool) -> float:
    """Smallest value over every partition, every role (idle too) and every option of every replica."""
    catalogue = Catalogue(problem)
    best = np.inf
    for groups in partitions(tuple(range(len(problem.devices)))):
        kinds = [catalogue.group_of(group) for group in groups]
        apart = [
            (*catalogue.options("prefill", k), *_slots(catalogue, "decode", k, objective), None)
            for k in kinds
        ]
        for chosen in product(*apart):
            used = [one for one in chosen if one]
            first = sum(objective.rate(one) for one in used if one.role == "prefill")
            best = min(best, _value(objective, first, [one for one in used if one.role == "decode"]))
        if allow_mixed:
            for chosen in product(*[(*_slots(catalogue, "mixed", k, objective), None) for k in kinds]):
                best = min(best, _value(objective, np.inf, [one for one in chosen if one]))
    return best


def _slots(
    catalogue: Catalogue, role: str, group: tuple[int, ...], objective: Objective
) -> tuple[Option, ...]:
    options = catalogue.options(role, group)
    return options if objective.is_wait else options[:1]


def _value(objective: Objective, prefill_rate: float, serving: list[Option]) -> float:
    if not serving or prefill_rate == 0:
        return float(np.inf)
    rate, slots = sum(objective.rate(one) for one in serving), sum(one.slots for one in serving)
    return float(objective.seconds(prefill_rate, rate, slots))


def optimum(problem: Problem, name: str = "wait", allow_mixed: bool = False) -> float:
    *_, last = solve(Catalogue(problem), Objective(name, problem), allow_mixed)
    return last.plans[0].seconds if last.plans else float(np.inf)


@settings(max_examples=12, deadline=None)
@given(SEEDS, st.integers(1, 5), RUNTIMES, st.sampled_from(["wait", "paper", "finishing"]), st.booleans())
def test_exact_equals_brute_force(seed: int, n: int, runtime: str, name: str, allow_mixed: bool) -> None:
    rng = np.random.default_rng(seed)
    arrival, cv = float(rng.choice([0.05, 0.5, 3.0])), float(rng.choice([0.0, 0.4]))
    problem = random_problem(
        rng,
        n,
        runtime=runtime,
        arrival_seconds=arrival,
        requests=int(rng.choice([3, 20, 100])),
        max_slots=int(rng.choice([3, 6])),
    )
    problem = with_workload(problem, output_cv=cv)
    expected = brute_force(problem, Objective(name, problem), allow_mixed)
    assert optimum(problem, name, allow_mixed) == pytest.approx(expected, rel=1e-9, abs=1e-7)


def test_exact_equals_brute_force_for_six_devices() -> None:
    problem = random_problem(np.random.default_rng(6), 6, max_slots=2)
    expected = brute_force(problem, Objective("wait", problem), False)
    assert optimum(problem) == pytest.approx(expected, rel=1e-9)


@settings(max_examples=15, deadline=None)
@given(SEEDS, RUNTIMES, st.permutations(range(5)))
def test_order_of_the_devices_does_not_matter(seed: int, runtime: str, order: list[int]) -> None:
    problem = random_problem(np.random.default_rng(seed), 5, runtime=runtime)
    shuffled = replace(problem, devices=tuple(problem.devices[k] for k in order))
    for name in ("wait", "paper"):
        assert optimum(shuffled, name, True) == pytest.approx(optimum(problem, name, True), rel=1e-9)


@settings(max_examples=15, deadline=None)
@given(SEEDS, RUNTIMES)
def test_one_more_device_is_never_worse(seed: int, runtime: str) -> None:
    problem = random_problem(np.random.default_rng(seed), 5, runtime=runtime)
    fewer = replace(problem, devices=problem.devices[:4])
    assert optimum(problem, "wait", True) <= optimum(fewer, "wait", True) + 1e-7


def scaled(problem: Problem, factor: float) -> Problem:
    """The same cluster with a clock that runs slower by `factor`."""

    def column(values: tuple[float, ...] | None) -> tuple[float, ...] | None:
        return None if values is None else tuple(factor * value for value in values)

    def table(one: LatencyTable) -> LatencyTable:
        gpu, head = column(one.gpu_block_seconds), column(one.head_seconds)
        assert gpu and head
        return LatencyTable(one.points, gpu, column(one.cpu_block_seconds), head)

    devices = tuple(
        replace(one, decode=table(one.decode), prefill=table(one.prefill)) for one in problem.devices
    )
    link = Link(problem.default_link.bytes_per_second / factor, problem.default_link.latency_seconds * factor)
    policy = replace(problem.policy, min_tokens_per_second=problem.policy.min_tokens_per_second / factor)
    workload = replace(problem.workload, arrival_seconds=problem.workload.arrival_seconds * factor)
    return replace(problem, devices=devices, default_link=link, policy=policy, workload=workload)


@settings(max_examples=15, deadline=None)
@given(SEEDS, RUNTIMES, st.sampled_from([0.5, 2.0, 8.0]))
def test_a_slower_clock_scales_the_wait(seed: int, runtime: str, factor: float) -> None:
    problem = random_problem(np.random.default_rng(seed), 4, runtime=runtime)
    slow = scaled(problem, factor)
    for name in ("wait", "paper"):
        assert optimum(slow, name, True) == pytest.approx(factor * optimum(problem, name, True), rel=1e-6)


@settings(max_examples=12, deadline=None)
@given(SEEDS, RUNTIMES, st.sampled_from(["wait", "paper"]))
def test_genetic_search_never_beats_the_optimum(seed: int, runtime: str, name: str) -> None:
    problem = random_problem(np.random.default_rng(seed), 6, runtime=runtime)
    catalogue = Catalogue(problem)
    *_, last = solve(catalogue, Objective(name, problem), True)
    settings_ = EvolveSettings(population=20, generations=10, objective=name)
    for generation in evolve(problem, settings_, np.random.default_rng(seed), catalogue=catalogue):
        if generation.best_seconds is not None:
            assert generation.best_seconds >= last.plans[0].seconds - 1e-7


@pytest.mark.parametrize("model", [GPT_OSS, QWEN])
@pytest.mark.parametrize("runtime", ["serial", "overlapped"])
def test_interchangeable_devices_get_the_same_optimum_as_different_ones(model: str, runtime: str) -> None:
    problem = paper_problem(model, 1, 3, 4, 5, 6, runtime=runtime)
    assert len(Costs(problem).kinds) == 3
    named_apart = tuple(
        replace(one, gpu_usable_bytes=one.gpu_usable_bytes + k) for k, one in enumerate(problem.devices)
    )
    apart = replace(problem, devices=named_apart)
    assert len(Costs(apart).kinds) == 5
    assert optimum(apart, "wait", True) == pytest.approx(optimum(problem, "wait", True), rel=1e-9)


def test_runners_up_are_different_and_ranked() -> None:
    *_, last = solve(Catalogue(paper_problem(QWEN)), Objective("wait", paper_problem(QWEN)), True)
    assert len({one.choices for one in last.plans}) == len(last.plans) > 20
    waits = [one.seconds for one in last.plans]
    assert waits == sorted(waits)


def test_without_idle_devices_every_device_takes_part() -> None:
    problem = random_problem(np.random.default_rng(3), 5, allow_idle=False)
    *_, last = solve(Catalogue(problem), Objective("wait", problem), True)
    for plan in last.plans:
        assert sorted(k for devices, _ in plan.choices for k in devices) == [0, 1, 2, 3, 4]

"""Large clusters: integer programs agree with the exact solver where both apply, and bounds are bounds."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.core import columns, exact
from planner.core.catalogue import Catalogue
from planner.core.columns.enumeration import Enumeration
from planner.core.congestion import burst_wait
from planner.core.evolve import EvolveSettings, evolve
from planner.core.neighbourhood import improve
from planner.core.objective import Objective
from planner.core.problem import Problem
from planner.core.search import SearchSettings, find_plan
from tests.planner.cluster import GPT_OSS, QWEN, linked, paper_problem, random_problem, with_workload


def optimum(problem: Problem, allow_mixed: bool = False) -> float:
    *_, last = exact.solve(Catalogue(problem), Objective("wait", problem), allow_mixed)
    return last.plans[0].seconds if last.plans else float(np.inf)


def of_two_kinds(seed: int, n: int, **changes: object) -> Problem:
    problem = random_problem(np.random.default_rng(seed), 2, **changes)
    devices = tuple(replace(problem.devices[k % 2], name=f"d{k}") for k in range(n))
    return replace(problem, devices=devices)


def check_plan(problem: Problem, last: columns.ColumnsStep) -> None:
    """Every device is used once, and the plan is worth what is said."""
    used = [device for devices, _ in last.choices for device in devices]
    assert len(used) == len(set(used))
    prefill = [option for _, option in last.choices if option.role == "prefill"]
    serving = [option for _, option in last.choices if option.role != "prefill"]
    first = sum(option.requests_per_second for option in prefill) if prefill else np.inf
    rate, slots = (
        sum(option.requests_per_second for option in serving),
        sum(option.slots for option in serving),
    )
    assert last.seconds == pytest.approx(float(burst_wait(first, rate, slots, problem.workload)))


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.integers(3, 7), st.sampled_from(["serial", "overlapped"]), st.booleans())
def test_integer_program_agrees_with_the_exact_solver(
    seed: int, n: int, runtime: str, allow_mixed: bool
) -> None:
    problem = of_two_kinds(seed, n, runtime=runtime, requests=200)
    best = optimum(problem, allow_mixed)
    *_, last = columns.solve(Catalogue(problem), Objective("wait", problem), allow_mixed)
    if not np.isfinite(best):
        assert last.seconds is None
        return
    assert last.seconds is not None and last.bound_seconds is not None
    check_plan(problem, last)
    assert last.bound_seconds <= best + 1e-6
    assert best - 1e-6 <= last.seconds <= best * 1.002 + 1e-6


@settings(max_examples=20, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from(["serial", "overlapped"]),
    st.sampled_from(["star", "chain"]),
    st.sampled_from([4, 30, 500]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_generated_bound_is_never_above_the_optimum(
    seed: int,
    runtime: str,
    topology: str,
    requests: int,
    allow_mixed: bool,
    allow_idle: bool,
    are_links_different: bool,
) -> None:
    rng = np.random.default_rng(seed)
    policy = {"runtime": runtime, "topology": topology, "max_slots": 6, "allow_idle": allow_idle}
    problem = random_problem(rng, 5, requests=requests, **policy)
    if are_links_different:
        problem = linked(problem, rng)
    elif rng.random() < 0.5:  # two that are interchangeable
        problem = replace(problem, devices=(*problem.devices, replace(problem.devices[0], name="twin")))
    catalogue, objective = Catalogue(problem), Objective("wait", problem)
    assert columns.can_generate(catalogue, objective)
    best = optimum(problem, allow_mixed)
    *_, last = columns.generate(catalogue, objective, [], allow_mixed)
    if last.bound_seconds is not None:
        assert last.bound_seconds <= best + 1e-6
    if last.seconds is not None:
        check_plan(problem, last)
        assert last.seconds >= best - 1e-6
    if np.isfinite(best) and requests == 500:
        assert last.bound_seconds is not None and last.bound_seconds >= 0.5 * best


@pytest.mark.parametrize("role", ["prefill", "decode", "mixed"])
@pytest.mark.parametrize("runtime", ["serial", "overlapped"])
@pytest.mark.parametrize("topology", ["star", "chain"])
def test_enumerated_rates_are_those_of_the_catalogue_or_better(
    role: str, runtime: str, topology: str
) -> None:
    rng = np.random.default_rng(11)
    problem = linked(random_problem(rng, 5, runtime=runtime, topology=topology), rng)
    catalogue = Catalogue(problem)
    enumeration = Enumeration(catalogue, role, 4)
    assert list(enumeration.work_out())
    rates = {
        (group, slots): rate
        for group, row, also in zip(enumeration.groups, enumeration.slots, enumeration.rate, strict=True)
        for slots, rate in zip(row.tolist(), also.tolist(), strict=True)
    }
    known = 0
    for size in range(1, 5):
        for group in combinations(range(5), size):
            for option in catalogue.options(role, group):
                known += 1
                assert rates[group, option.slots] >= option.requests_per_second * (1 - 1e-9)
    assert known > 20
    slots_of_all = sum(max((o.slots for o in catalogue.options(role, (k,))), default=0) for k in range(5))
    assert enumeration.most_slots() >= slots_of_all


@pytest.mark.parametrize("allow_mixed", [False, True])
def test_local_search_only_improves_and_ends_at_the_optimum_of_small_fleets(allow_mixed: bool) -> None:
    problem = with_workload(paper_problem(QWEN), arrival_seconds=0.5)
    catalogue, objective = Catalogue(problem), Objective("wait", problem)
    quick = EvolveSettings(population=6, generations=2, allow_mixed=allow_mixed)
    *_, start = evolve(problem, quick, np.random.default_rng(1), catalogue=catalogue)
    assert start.best_seconds is not None
    reached = [
        one.seconds
        for one in improve(catalogue, objective, start.best_choices, np.random.default_rng(0), 5000)
    ]
    assert reached == sorted(reached, reverse=True)
    assert reached[-1] <= start.best_seconds + 1e-9
    assert reached[-1] >= optimum(problem, allow_mixed) - 1e-6


def test_many_devices_of_few_kinds_come_with_a_bound() -> None:
    problem = paper_problem(GPT_OSS, allow_mixed=False)
    devices = tuple(replace(problem.devices[(0, 2, 4)[k % 3]], name=f"d{k}") for k in range(18))
    problem = with_workload(replace(problem, devices=devices), requests=2000, arrival_seconds=0.02)
    plan = find_plan(problem, SearchSettings(population=8, generations=3, compare=False))
    assert plan.proof.bound is not None and plan.proof.gap is not None
    assert plan.proof.gap <= 0.002 * plan.proof.bound
    assert plan.proof.method.startswith("integer program over kinds")


def test_many_different_devices_come_with_a_bound_and_a_gap() -> None:
    problem = random_problem(np.random.default_rng(2), 17, requests=1000, max_slots=6)
    plan = find_plan(problem, SearchSettings(population=8, generations=3, compare=False))
    assert plan.proof.bound is not None and plan.proof.gap is not None
    assert 0 <= plan.proof.gap <= 0.1 * plan.proof.bound
    assert plan.proof.method.startswith("column generation")

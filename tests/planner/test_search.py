"""The delivered plan: right for tiny labs, repeatable, resumable, and an honest no where there is none."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planner.core.congestion import Score
from planner.core.errors import NoFeasiblePlan
from planner.core.forecast import Forecast
from planner.core.objective import SIMULATED_WAIT, WAIT, Objective
from planner.core.plan import Plan
from planner.core.problem import Device, LatencyTable, Problem
from planner.core.search import SearchSettings, find_plan, search
from planner.core.shortlist import Shortlist
from tests.planner.cluster import LAN, QWEN, model, paper_problem, problem, with_workload

QUICK = SearchSettings(population=12, generations=8)


def processor(name: str, *, memory: float = 100.0, seconds: float = 0.001, **more: Any) -> Device:
    """A machine without a GPU: one pool of memory, no second place for blocks."""
    decode = LatencyTable((1.0, 2.0, 4.0), (seconds, 1.5 * seconds, 2.5 * seconds), None, (seconds,) * 3)
    prefill = LatencyTable((64.0, 256.0), (20 * seconds, 80 * seconds), None, (seconds,) * 2)
    return Device(name, "cpu", memory, 0.0, decode, prefill, **more)


def lab(*devices: Device, **changes: Any) -> Problem:
    shape = model(
        10,
        block_bytes=3.0,
        kv_slot_block_bytes=0.1,
        output_bytes=5.0,
        embedding_bytes=5.0,
        embedding_length=576,
        kv_handoff_bytes_per_token=46080,
    )
    given = {"input_tokens": 200, "output_tokens": 64, "arrival_seconds": 1.0, "requests": 30, "max_slots": 4}
    return problem(devices, model=shape, links=LAN, **{**given, "allow_mixed": True, **changes})


def refusal(cluster: Problem) -> NoFeasiblePlan:
    with pytest.raises(NoFeasiblePlan) as caught:
        find_plan(cluster, QUICK)
    assert caught.value.remedy and caught.value.shortfall > 0
    json.dumps(caught.value.to_dict(), allow_nan=False)
    return caught.value


def test_one_device_becomes_one_mixed_replica() -> None:
    plan = find_plan(lab(processor("a")), QUICK)
    assert [(one.role, one.devices) for one in plan.replicas] == [("mixed", ("a",))]
    assert plan.replicas[0].stages[0].gpu_blocks == 10
    assert plan.proof.optimal


@pytest.mark.parametrize("number", [1, 3])
def test_one_device_is_proven_best_once_every_number_of_slots_was_simulated(number: int) -> None:
    plan = find_plan(paper_problem(QWEN, number), QUICK)
    proof, wait = plan.proof, plan.predicted.max_wait_seconds
    assert (proof.optimal, proof.bound, proof.value, proof.gap) == (True, wait, wait, 0.0)
    assert proof.objective == SIMULATED_WAIT


@pytest.mark.parametrize("numbers", [(1, 2), (5, 6), (1, 2, 5, 6)])
def test_a_bound_is_never_above_the_value_that_it_bounds(numbers: tuple[int, ...]) -> None:
    proof = find_plan(paper_problem(QWEN, *numbers, allow_mixed=True), QUICK).proof
    assert proof.value is not None and proof.bound is not None and proof.gap is not None
    assert proof.objective == "longest wait by the formula"
    assert proof.bound <= proof.value + 1e-6
    assert proof.gap == pytest.approx(proof.value - proof.bound, abs=1e-6)


@pytest.mark.parametrize(
    ("objective", "name"), [("paper", "paper"), ("finishing", "finishing_time"), ("splitwise", "splitwise")]
)
def test_another_objective_delivers_the_plan_of_the_planner_compared_with(objective: str, name: str) -> None:
    cluster = paper_problem(QWEN, 1, 2, 5, 6, 7, allow_mixed=True)
    plan = find_plan(cluster, SearchSettings(objective=objective))
    assert plan.predicted.max_wait_seconds == plan.baselines[name]["max_wait_seconds"]
    assert len(plan.replicas) == plan.baselines[name]["replicas"]
    assert plan.proof.bound is None or plan.proof.objective != "longest wait by the formula"


def test_two_devices_without_mixing_take_one_role_each() -> None:
    plan = find_plan(lab(processor("a"), processor("b", seconds=0.002), allow_mixed=False), QUICK)
    assert sorted(one.role for one in plan.replicas) == ["decode", "prefill"]
    assert plan.idle == ()


def test_two_small_devices_share_one_replica() -> None:
    plan = find_plan(lab(processor("a", memory=32.0), processor("b", memory=25.0)), QUICK)
    assert [sorted(one.devices) for one in plan.replicas] == [["a", "b"]]
    assert sum(stage.blocks for stage in plan.replicas[0].stages) == 10


def test_one_machine_alone_is_chosen_where_a_second_would_only_add_hops() -> None:
    slow = processor("slow", seconds=1.0)
    plan = find_plan(lab(processor("fast"), slow, arrival_seconds=100.0, min_tokens_per_second=10.0), QUICK)
    assert [one.devices for one in plan.replicas] == [("fast",)]
    assert plan.idle == ("slow",)


def test_every_replica_of_a_plan_holds_the_model_the_memory_and_the_floor() -> None:
    cluster = with_workload(paper_problem(QWEN), input_cv=0.25, output_cv=0.4)
    plan = find_plan(cluster, QUICK)
    for replica in plan.replicas:
        assert sum(stage.blocks for stage in replica.stages) == 48
        assert sum(stage.master for stage in replica.stages) == 1
        assert all(stage.gpu_bytes <= stage.gpu_limit_bytes + 1 for stage in replica.stages)
        if replica.role != "prefill":
            assert replica.tpot_seconds <= 1 / cluster.policy.min_tokens_per_second
    placed = [name for replica in plan.replicas for name in replica.devices] + list(plan.idle)
    assert sorted(placed) == sorted(device.name for device in cluster.devices)


@pytest.mark.parametrize("method", ["auto", "exact", "ga", "paper"])
def test_same_input_and_seed_give_the_same_bytes(method: str) -> None:
    cluster = with_workload(paper_problem(QWEN, 1, 2, 5, 6), output_cv=0.4)
    settings = SearchSettings(method=method, population=12, generations=8)
    texts = [json.dumps(find_plan(cluster, settings).to_dict(), allow_nan=False) for _ in range(2)]
    assert texts[0] == texts[1]
    assert Plan.from_dict(json.loads(texts[0])).to_dict() == json.loads(texts[0])


def test_a_search_goes_on_from_its_checkpoint_as_if_it_had_not_stopped() -> None:
    cluster = paper_problem(QWEN, 1, 2, 5, 6, 7)
    settings = SearchSettings(method="ga", population=10, generations=12)
    whole = list(search(cluster, settings, np.random.default_rng(5)))
    checkpoint = json.loads(json.dumps(whole[4].checkpoint))
    rest = list(search(cluster, settings, np.random.default_rng(99), checkpoint))
    assert [step.generation for step in rest if step.generation] == list(range(6, 13))
    for before, after in zip(whole[5:12], rest, strict=False):
        assert (before.best_seconds, before.mean_seconds) == (after.best_seconds, after.mean_seconds)
    assert rest[-1].best_plan is not None and whole[-1].best_plan is not None
    assert rest[-1].best_plan.replicas == whole[-1].best_plan.replicas


@pytest.mark.parametrize("stopped_after", [3, 8])
def test_a_search_that_went_on_delivers_the_same_bytes_as_one_that_never_stopped(stopped_after: int) -> None:
    cluster = paper_problem(QWEN, 1, 2, 5, 6)
    whole = list(search(cluster, QUICK, np.random.default_rng(0)))
    kept = next(step.checkpoint for step in whole if step.generation == stopped_after)
    rest = list(search(cluster, QUICK, np.random.default_rng(99), json.loads(json.dumps(kept))))
    assert whole[-1].best_plan is not None and rest[-1].best_plan is not None
    assert rest[-1].best_plan.to_dict() == whole[-1].best_plan.to_dict()


def test_where_not_every_replica_is_worked_out_a_search_that_went_on_says_from_where_it_counts() -> None:
    cluster = paper_problem(QWEN, 1, 2, 5, 6, 7)
    settings = SearchSettings(method="ga", population=10, generations=12)
    whole = list(search(cluster, settings, np.random.default_rng(5)))
    rest = list(
        search(cluster, settings, np.random.default_rng(5), json.loads(json.dumps(whole[4].checkpoint)))
    )
    first, second = whole[-1].best_plan, rest[-1].best_plan
    assert first is not None and second is not None
    assert second.assumptions == first.assumptions, "the simulation chose among as many plans"
    assert second.proof.method.endswith("; replicas counted anew from generation 6 on")
    assert (second.predicted, second.replicas) == (first.predicted, first.replicas)


def test_steps_tell_the_generation_the_bound_and_the_way_done() -> None:
    steps = list(search(paper_problem(QWEN, 1, 2, 5, 6), QUICK, np.random.default_rng(0)))
    fractions = [step.fraction for step in steps]
    assert fractions == sorted(fractions) and fractions[-1] == 1.0
    generations = [step for step in steps if step.generation]
    assert len(generations) == 8
    for step in generations:
        assert step.bound_seconds is not None and step.best_seconds is not None
        assert step.best_seconds >= step.bound_seconds - 1e-7
        assert step.best_plan is not None and step.checkpoint is not None
    assert [step.final for step in steps].count(True) == 1 and steps[-1].final


def test_the_delivered_plan_waits_no_longer_than_any_comparison() -> None:
    cluster = with_workload(paper_problem(QWEN), arrival_seconds=0.5, input_cv=0.25, output_cv=0.4)
    plan = find_plan(cluster, QUICK)
    assert set(plan.baselines) == {"paper", "finishing_time", "splitwise", "one_pipeline", "single_devices"}
    for other in plan.baselines.values():
        if other["feasible"] and other["holds_floor"]:
            assert plan.predicted.max_wait_seconds <= other["max_wait_seconds"] * 1.005 + 0.02


def test_the_plans_of_other_planners_have_a_short_waiting_curve() -> None:
    cluster = with_workload(paper_problem(QWEN), arrival_seconds=0.5, input_cv=0.25, output_cv=0.4)
    others = [other for other in find_plan(cluster, QUICK).baselines.values() if other["feasible"]]
    for other in others:
        curve = other["wait_curve_seconds"]
        assert len(curve) == 21 and curve == sorted(curve)
        assert curve[-1] == pytest.approx(other["max_wait_seconds"], rel=1e-3)
    assert len(json.dumps(others)) < 600 * len(others)


def test_paper_mode_keeps_phases_apart_and_ranks_by_the_papers_wait() -> None:
    plan = find_plan(paper_problem(QWEN), SearchSettings(method="paper"))
    assert plan.mode == "disaggregated"
    ours = find_plan(paper_problem(QWEN), QUICK)
    assert (
        plan.predicted.paper_wait_seconds <= ours.predicted.paper_wait_seconds + 1e-9 or ours.mode == "mixed"
    )


def test_a_model_larger_than_the_fleet_names_the_missing_bytes() -> None:
    error = refusal(lab(processor("a", memory=20.0), processor("b", memory=12.0)))
    assert error.limit == "memory"
    assert "of the 10 blocks" in error.text


@pytest.mark.parametrize("names", ["a", "ab"])
def test_a_limit_of_blocks_is_not_taken_for_a_lack_of_memory(names: str) -> None:
    error = refusal(lab(*(processor(name, max_blocks=1) for name in names)))
    assert (error.limit, error.shortfall, error.unit) == ("max_blocks", 10 - len(names), "blocks")
    assert "max_blocks allows no more (a 1" in error.text and "Raise max_blocks" in error.remedy


def test_without_room_for_a_block_the_memory_is_the_limit_whatever_max_blocks_says() -> None:
    assert refusal(lab(processor("a", memory=20.0, max_blocks=1))).limit == "memory"


def test_no_room_for_the_head_is_told_apart() -> None:
    assert "output layer" in refusal(lab(processor("a", memory=12.0), processor("b", memory=12.0))).text


def test_a_floor_that_nobody_holds_names_the_fastest_speed_and_lowering_to_it_helps() -> None:
    cluster = lab(processor("a"), min_tokens_per_second=1000.0)
    error = refusal(cluster)
    assert error.limit == "floor"
    lowered = float(error.remedy.split("floor to ")[1].split(" ")[0])
    assert 0 < lowered < 1000
    assert find_plan(replace(cluster, policy=replace(cluster.policy, min_tokens_per_second=lowered)), QUICK)


def test_one_replica_without_mixing_is_not_enough() -> None:
    error = refusal(lab(processor("a"), allow_mixed=False))
    assert (error.limit, error.shortfall) == ("replicas", 1)
    assert find_plan(lab(processor("a")), QUICK)


def test_devices_that_may_not_be_masters_are_named() -> None:
    assert refusal(lab(processor("a", can_be_master=False))).limit == "master"


def test_devices_that_cannot_take_part_are_refused_where_none_may_idle() -> None:
    useless = processor("useless", memory=1.0, can_be_master=False)
    cluster = lab(processor("a"), useless, allow_idle=False)
    assert refusal(cluster).limit == "idle"
    assert find_plan(replace(cluster, policy=replace(cluster.policy, allow_idle=True)), QUICK).idle == (
        "useless",
    )


def test_links_of_unequal_speed_are_taken_into_account() -> None:
    slow = replace(LAN, bytes_per_second=1e3)
    trio = [processor(name, memory=32.0) for name in "abc"]
    cluster = replace(lab(*trio), pairs=(("a", "b", slow), ("b", "c", slow)))
    plan = find_plan(cluster, QUICK)
    assert [sorted(one.devices) for one in plan.replicas] == [["a", "c"]]


@pytest.mark.parametrize(
    (
        "figures",
        "best",
    ),  # of each plan: wait by the formula, utilisation, simulated first token, slowest answer
    [
        ([(0.0, 0.2, 0.777, 16.0), (0.0, 0.4, 0.379, 15.0)], 1),
        ([(0.0, 0.2, 0.379, 15.0), (0.0, 0.4, 0.379, 16.0)], 1),
        ([(0.0, 0.2, 0.3791, 15.01), (0.0, 0.4, 0.379, 15.0)], 0),
        ([(0.0, 0.2, 0.777, 15.0), (1.0, 0.4, 0.379, 16.0)], 0),
    ],
)
def test_among_plans_that_wait_as_long_the_first_token_and_the_answers_decide(
    figures: list[tuple[float, float, float, float]], best: int
) -> None:
    keys: list[Any] = [(((number,), None),) for number in range(len(figures))]
    found = Shortlist(Objective(WAIT, lab(processor("a"))))
    told = {}
    for key, (wait, utilisation, first, slowest) in zip(keys, figures, strict=True):
        found.scores[key] = Score(wait, utilisation, 0.0, 0.0, 1)
        told[key] = Forecast(0.0, 0.0, 0.0, first, slowest)
    assert found.pick(keys, told) == keys[best]

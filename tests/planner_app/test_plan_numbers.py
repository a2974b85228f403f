"""The tiles and meters of a plan page, from a plan that the search has made."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from inventory.core.quantities import rate_text, significant
from planner.charts.facts import utilisation_rows
from planner.charts.tiles import AT_LEAST, SLOWEST, headline
from planner.core.forecast import waiting_curve
from planner.core.plan import Plan
from planner.core.search import SearchSettings, find_plan, search
from planner.models import Origin
from tests.planner.cluster import device, problem, table

QUICK = SearchSettings(population=12, generations=5)


def two_mixed() -> Plan:
    boxes = [device("a", 0.001, prefill=table(0.05)), device("b", 0.002, prefill=table(0.05))]
    return find_plan(problem(boxes, max_slots=1, allow_mixed=True, arrival_seconds=0.05), QUICK)


def tiles(plan: dict[str, Any], origin: Origin = Origin.SEARCHED) -> dict[str, dict[str, Any]]:
    return {tile["label"]: tile for tile in headline(plan, origin)}


def test_tiles_of_mixed_replicas_say_which_speed_counts_prompts_and_which_does_not() -> None:
    plan = two_mixed()
    found = tiles(plan.to_dict())
    assert plan.mode == "mixed"
    assert found[AT_LEAST]["hint"].startswith("once its prompt is read, all slots busy")
    assert found["All requests get"]["hint"] == "at most, prompts taking the rest of the time"
    slots = sum(replica.slots for replica in plan.replicas)
    assert plan.predicted.decode_tokens_per_second < slots / plan.predicted.tpot_seconds


def test_without_mixed_replicas_slots_times_speed_is_the_speed_of_all() -> None:
    boxes = [device("a", 0.001, prefill=table(0.05)), device("b", 0.002, prefill=table(0.05))]
    plan = find_plan(problem(boxes), QUICK)
    found = tiles(plan.to_dict())
    assert found["All requests get"]["hint"] == "at most, all slots busy"
    slots = sum(replica.slots for replica in plan.replicas if replica.role == "decode")
    assert plan.predicted.decode_tokens_per_second == pytest.approx(slots / plan.predicted.tpot_seconds)


def test_the_speed_told_is_that_of_the_slowest_replica_and_the_mean_stands_beside_it() -> None:
    plan = two_mixed()
    slowest = max(replica.tpot_seconds for replica in plan.replicas)
    assert slowest > 1.1 * plan.predicted.tpot_seconds
    told = tiles(plan.to_dict())[AT_LEAST]
    assert told["value"] == significant(1 / slowest)
    assert told["hint"].endswith(f"{rate_text(1 / plan.predicted.tpot_seconds)} on average")


def test_the_speed_of_the_slowest_answer_of_a_quiet_burst_stands_beside_the_guaranteed_one() -> None:
    quiet = problem([device("a", 0.001, prefill=table(0.05))], allow_mixed=True, arrival_seconds=1000.0)
    plan = find_plan(quiet, QUICK)
    burst = waiting_curve(quiet, plan)
    told = {tile["label"]: tile for tile in headline(plan.to_dict(), burst=burst)}[SLOWEST]
    assert told["value"] == significant(burst.slowest_tokens_per_second)
    assert SLOWEST not in tiles(plan.to_dict())


def test_a_plan_of_a_stopped_search_is_not_called_simulated() -> None:
    found = tiles(two_mixed().to_dict(), Origin.STOPPED)
    assert {found[label]["hint"] for label in ("Longest wait", "Mean wait")} == {
        "by the formula, not simulated"
    }


def test_mixed_replicas_are_busy_with_both_phases_as_one() -> None:
    plan = two_mixed().to_dict()
    plan["predicted"]["utilisation"] = {"prefill": 8.02, "network": 0.0, "decode": 8.02}
    rows = utilisation_rows(plan)
    assert [(row["label"], row["text"]) for row in rows] == [
        ("Prompts and answers", "asked for 8 times what it can")
    ]


def test_the_plan_of_every_generation_says_the_bound_known_by_then() -> None:
    boxes = [device("a", 0.001, prefill=table(0.05)), device("b", 0.002, prefill=table(0.05))]
    settings = SearchSettings(population=12, generations=5)
    steps = [step for step in search(problem(boxes), settings, np.random.default_rng(0)) if step.best_plan]
    known = [(step.best_plan.proof.bound, step.bound_seconds) for step in steps if step.best_plan]
    assert len(known) > 1
    assert all(said == bound and bound is not None for said, bound in known)

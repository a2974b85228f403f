"""Numbers of a plan file against those that its cluster gives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planner.core.plan import Plan
from planner.core.recomputed import contradictions, wrong_predictions
from planner.core.search import SearchSettings, find_plan, search
from tests.planner.cluster import GPT_OSS, QWEN, linked, paper_problem, random_problem, with_workload

QUICK = SearchSettings("ga", population=12, generations=5, compare=False)


@pytest.mark.parametrize("topology", ["star", "chain"])
@pytest.mark.parametrize("runtime", ["serial", "overlapped"])
@pytest.mark.parametrize("allow_mixed", [True, False])
def test_a_plan_of_ours_contradicts_nothing(allow_mixed: bool, runtime: str, topology: str) -> None:
    changes: dict[str, Any] = {"allow_mixed": allow_mixed, "runtime": runtime, "topology": topology}
    clusters = [paper_problem(name, 1, 2, 3, 5, 6, **changes) for name in (GPT_OSS, QWEN)]
    rng = np.random.default_rng(3)
    clusters.append(random_problem(rng, 5, **changes))
    clusters.append(linked(random_problem(rng, 5, **changes), rng))
    for cluster in clusters:
        plan = find_plan(cluster, QUICK)
        for one in (plan, Plan.from_dict(plan.to_dict())):
            assert contradictions(cluster, one) == []
            assert wrong_predictions(cluster, one) == []


@pytest.mark.parametrize(
    "key",
    ["bottleneck_seconds", "pass_seconds", "tpot_seconds", "requests_per_second", "decode_tokens_per_second"],
)
def test_a_number_that_the_cluster_does_not_give_is_named(key: str) -> None:
    cluster = paper_problem(QWEN, 1, 2, allow_mixed=True)
    plan = find_plan(cluster, QUICK)
    ours = getattr(plan.replicas[1], key)
    replicas = (plan.replicas[0], replace(plan.replicas[1], **{key: 1e-9}))
    told = contradictions(cluster, replace(plan, replicas=replicas))
    assert told == [f"replicas[1].{key}: 1e-09, but the cluster file makes it {ours:g}"]


def test_numbers_of_a_stage_are_worked_out_again_too() -> None:
    cluster = paper_problem(QWEN, 1, 2, allow_mixed=True)
    plan = find_plan(cluster, QUICK)
    first, *rest = plan.replicas
    stages = (replace(first.stages[0], seconds=1e-9, gpu_bytes=5.0), *first.stages[1:])
    told = contradictions(cluster, replace(plan, replicas=(replace(first, stages=stages), *rest)))
    assert [one.partition(":")[0] for one in told] == [
        "replicas[0].stages[0].seconds",
        "replicas[0].stages[0].gpu_bytes",
    ]


@pytest.mark.parametrize("arrivals", ["fixed", "poisson"])
def test_predictions_are_those_of_the_simulation_or_of_the_formula(arrivals: str) -> None:
    cluster = with_workload(paper_problem(QWEN, 1, 2, allow_mixed=True), arrivals=arrivals, output_cv=0.3)
    *_, stopped, done = (
        step.best_plan for step in search(cluster, QUICK, np.random.default_rng(0)) if step.best_plan
    )
    assert stopped.predicted != done.predicted
    for plan in (stopped, done):
        assert wrong_predictions(cluster, plan) == []


@pytest.mark.parametrize(
    "key",
    ["tpot_seconds", "decode_tokens_per_second", "max_wait_seconds", "ttft_seconds", "paper_wait_seconds"],
)
def test_a_prediction_that_nothing_bears_out_is_named(key: str) -> None:
    cluster = paper_problem(QWEN, 1, 2, allow_mixed=True)
    plan = find_plan(cluster, QUICK)
    load = plan.predicted.utilisation | {"decode": 0.1}
    odd = replace(plan, predicted=replace(plan.predicted, utilisation=load, **{key: 1e-9}))
    paths = [one.partition(":")[0] for one in wrong_predictions(cluster, odd)]
    assert paths == [f"predicted.{key}", "predicted.utilisation.decode"]

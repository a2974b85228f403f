"""Numbers of a plan file against those that its cluster gives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planner.core.plan import Plan
from planner.core.recomputed import contradictions
from planner.core.search import SearchSettings, find_plan
from tests.planner.cluster import GPT_OSS, QWEN, linked, paper_problem, random_problem

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
        assert contradictions(cluster, plan) == []
        assert contradictions(cluster, Plan.from_dict(plan.to_dict())) == []


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


def test_stages_and_predictions_are_worked_out_again_too() -> None:
    cluster = paper_problem(QWEN, 1, 2, allow_mixed=True)
    plan = find_plan(cluster, QUICK)
    first, *rest = plan.replicas
    stages = (replace(first.stages[0], seconds=1e-9, gpu_bytes=5.0), *first.stages[1:])
    told = contradictions(cluster, replace(plan, replicas=(replace(first, stages=stages), *rest)))
    assert [one.partition(":")[0] for one in told] == [
        "replicas[0].stages[0].seconds",
        "replicas[0].stages[0].gpu_bytes",
    ]
    predicted = replace(
        plan.predicted, tpot_seconds=1e-9, utilisation=plan.predicted.utilisation | {"decode": 0.1}
    )
    told = contradictions(cluster, replace(plan, predicted=predicted))
    assert [one.partition(":")[0] for one in told] == [
        "predicted.tpot_seconds",
        "predicted.utilisation.decode",
    ]

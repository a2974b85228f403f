"""Whether a plan can be one for a problem."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.core.errors import BadDocument
from planner.core.fitting import faults
from planner.core.plan import Plan
from planner.core.problem import Problem
from planner.core.search import SearchSettings, find_plan
from planner.services import EXAMPLES, Example

FOUND = {"label": "x", "feasible": True, "holds_floor": True, "max_wait_seconds": 1.0}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.key)
@pytest.mark.parametrize("allow_mixed", [True, False])
def test_every_plan_that_is_found_is_one_for_its_problem(example: Example, allow_mixed: bool) -> None:
    problem = Problem.from_dict(example.cluster())
    problem = replace(problem, policy=replace(problem.policy, allow_mixed=allow_mixed))
    plan = find_plan(problem, SearchSettings("ga", generations=10, compare=False))
    assert faults(problem, plan) == []


def test_a_plan_that_asks_too_much_of_its_devices_is_told_where() -> None:
    problem = Problem.from_dict(EXAMPLES[0].cluster())
    plan = find_plan(problem, SearchSettings("ga", generations=10, compare=False))
    stage = plan.replicas[0].stages[0]
    devices = tuple(
        replace(device, gpu_usable_bytes=1e6, can_be_master=False) if device.name == stage.device else device
        for device in problem.devices
    )
    told = faults(replace(problem, devices=devices), plan)
    assert (
        f"replicas[0].stages[0].gpu_blocks: needs {stage.gpu_bytes:,.0f} bytes on {stage.device}" in told[-1]
    )
    assert told[-1].endswith("which has 1,000,000 usable")


def test_an_idle_device_must_be_one_of_the_cluster() -> None:
    problem = Problem.from_dict(EXAMPLES[0].cluster())
    plan = find_plan(problem, SearchSettings("ga", generations=5, compare=False))
    assert faults(problem, replace(plan, idle=("Nobody",))) == [
        "idle[0]: 'Nobody' is not a device of the cluster file"
    ]


@pytest.mark.parametrize(
    ("baselines", "told"),
    [
        ([1], "baselines: a list is not an object"),
        ({"paper": {"label": "x"}}, "baselines.paper.feasible: is missing"),
        ({str(k): {} for k in range(21)}, "baselines: has 21 entries, more than 20"),
        ({"a": FOUND | {"wait_curve_seconds": [0, -1]}}, "baselines.a.wait_curve_seconds[1]: -1 is negative"),
        (
            {"a": FOUND | {"wait_curve_seconds": [1] * 102}},
            "baselines.a.wait_curve_seconds: has more than 101 points",
        ),
        (7, "baselines: 7 is not an object"),
    ],
)
def test_baselines_that_a_page_cannot_show_are_a_problem(baselines: object, told: str) -> None:
    problem = Problem.from_dict(EXAMPLES[0].cluster())
    document = find_plan(problem, SearchSettings("ga", generations=5, compare=False)).to_dict()
    with pytest.raises(BadDocument) as raised:
        Plan.from_dict(document | {"baselines": baselines})
    assert raised.value.problems == [told]

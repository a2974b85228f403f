"""A model that fits nowhere or is too slow: what is missing, why, and that each way out leads to a plan."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from planner.core.errors import NoFeasiblePlan
from planner.core.infeasible import told_apart
from planner.core.problem import Device, Problem
from planner.core.room import with_kv_share, with_weight_share
from planner.core.search import SearchSettings, find_plan
from tests.planner.cluster import QWEN, device, paper_problem, with_workload

QUICK = SearchSettings(compare=False)
UNITS = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}


def crowded(numbers: tuple[int, ...], context_tokens: int, **policy: Any) -> Problem:
    """The paper's cluster with the KV cache that a context of this size has."""
    given = {"min_tokens_per_second": 0.01, "allow_mixed": True, **policy}
    here = paper_problem(QWEN, *numbers, **given)
    model = with_kv_share(here.model, context_tokens / here.workload.context_tokens)
    return replace(with_workload(here, context_tokens=context_tokens, requests=5), model=model)


def refusal(cluster: Problem) -> NoFeasiblePlan:
    with pytest.raises(NoFeasiblePlan) as caught:
        find_plan(cluster, QUICK)
    return caught.value


def named_bytes(remedy: str, pattern: str) -> float:
    number, unit = re.findall(rf"{pattern} ([\d.,]+) (\w+)", remedy)[0]
    return float(number.replace(",", "")) * UNITS[unit]


def with_device(cluster: Problem, memory: float) -> Problem:
    new: Device = device("new", 0.001, memory=memory)
    return replace(cluster, devices=(*cluster.devices, new))


@pytest.mark.parametrize("numbers", [(1, 2, 3), (2,), (7, 8)], ids=str)
@pytest.mark.parametrize("context", [1_000_000, 10_000_000, 100_000_000])
def test_a_device_of_the_named_size_or_the_named_context_makes_a_plan_possible(
    numbers: tuple[int, ...], context: int
) -> None:
    cluster = crowded(numbers, context)
    error = refusal(cluster)
    assert error.limit == "memory" and "The KV cache of that one slot is most of it" in error.text
    size = named_bytes(error.remedy, "add a device with")
    assert size == pytest.approx(error.shortfall, rel=0.011)
    assert find_plan(with_device(cluster, size), QUICK)
    assert refusal(with_device(cluster, 0.98 * size)).limit == "memory"
    tokens = int(re.findall(r"at most ([\d,]+) tokens", error.remedy)[0].replace(",", ""))
    assert find_plan(crowded(numbers, tokens), QUICK)
    assert refusal(crowded(numbers, int(1.02 * tokens))).limit == "memory"
    assert "quantisation" not in error.remedy, "the weights are not what is in the way"


def test_a_little_too_large_names_what_to_free_and_the_blocks_that_would_fit() -> None:
    cluster = crowded((3,), 8192)
    (only,) = cluster.devices
    cluster = replace(cluster, devices=(replace(only, gpu_usable_bytes=17.5e9),))
    error = refusal(cluster)
    assert "KV cache" not in error.text
    freed = replace(only, gpu_usable_bytes=17.5e9 + named_bytes(error.remedy, "free"))
    assert find_plan(replace(cluster, devices=(freed,)), QUICK)
    blocks = named_bytes(error.remedy, "blocks of at most")
    smaller = with_weight_share(cluster.model, blocks / cluster.model.block_bytes)
    assert find_plan(replace(cluster, model=smaller), QUICK)


def test_no_context_is_named_that_the_requests_would_not_fit_in() -> None:
    error = refusal(with_workload(crowded((2,), 10_000_000), input_tokens=5_000_000, output_tokens=4_000_000))
    assert "slot context" not in error.remedy and "add a device" in error.remedy.lower()


@pytest.mark.parametrize("above", [1 + 1e-6, 1.01, 1e6])
def test_the_largest_floor_that_can_be_held_is_named_in_numbers_that_differ(above: float) -> None:
    cluster = crowded((3,), 8192)
    too_much = refusal(crowded((3,), 8192, min_tokens_per_second=1e4))
    fastest = 1e4 - too_much.shortfall
    floor = fastest * above
    error = refusal(crowded((3,), 8192, min_tokens_per_second=floor))
    reached, asked = re.findall(r"gives ([\d.,]+) tokens/s .* floor is ([\d.,]+)\.$", error.text)[0]
    assert float(reached.replace(",", "")) < float(asked.replace(",", ""))
    lowered = float(re.findall(r"floor to ([\d.]+) ", error.remedy)[0])
    assert fastest * 0.99 < lowered <= fastest
    assert find_plan(replace(cluster, policy=replace(cluster.policy, min_tokens_per_second=lowered)), QUICK)
    assert refusal(crowded((3,), 8192, min_tokens_per_second=lowered * 1.02)).limit == "floor"


def test_numbers_are_told_apart_without_exponents() -> None:
    assert told_apart(43.9, 1e6) == ("43.9", "1,000,000")
    assert told_apart(43.87, 43.9) == ("43.87", "43.9")
    assert told_apart(113.52, 113.7) == ("113.5", "113.7")


def test_overlapped_stages_that_lack_slots_are_told_so() -> None:
    one = crowded((1, 2), 8192, runtime="overlapped", max_slots=1)
    small = tuple(replace(device, ram_usable_bytes=0.0, gpu_usable_bytes=11e9) for device in one.devices)
    error = refusal(replace(one, devices=small))
    assert (error.limit, error.shortfall, error.unit) == ("memory", 1, "slots")
    assert "overlapped" in error.text

"""The layer split against brute force over all splits."""

from __future__ import annotations

from itertools import product
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.core.partition import Split, minimum_sum, paper_dp, select, selection_rule

Stages = tuple[np.ndarray, np.ndarray, list[float]]


def compositions(n_blocks: int, n_devices: int) -> list[tuple[int, ...]]:
    return [c for c in product(range(1, n_blocks + 1), repeat=n_devices) if sum(c) == n_blocks]


def brute_force(workers: np.ndarray, masters: np.ndarray, hops: list[float]) -> list[Split]:
    """Every split of every master that fits."""
    found = []
    for master in range(len(workers)):
        for counts in compositions(workers.shape[1] - 1, len(workers)):
            stages = [float((masters if k == master else workers)[k, n]) for k, n in enumerate(counts)]
            if np.isfinite(stages).all():
                found.append(Split(counts, master, max([*stages, *hops]), sum(stages) + sum(hops)))
    return found


@st.composite
def rising_stages(draw: st.DrawFn) -> Stages:
    """Stage costs as memory and tables make them: GPU blocks first, then slower ones, then no room."""
    n_devices = draw(st.integers(1, 4))
    n_blocks = draw(st.integers(n_devices, 9))
    whole = st.integers(1, 30)
    sides: list[list[np.ndarray]] = [[], []]
    for _ in range(n_devices):
        fast, slow, head = draw(whole), draw(whole), draw(st.integers(0, 30))
        on_gpu, room = draw(st.integers(0, n_blocks)), draw(st.integers(1, n_blocks))
        for side in (0, 1):
            n = np.arange(n_blocks + 1)
            most_on_gpu = max(0, on_gpu - side)
            seconds = np.minimum(n, most_on_gpu) * fast + np.maximum(0, n - most_on_gpu) * (fast + slow)
            sides[side].append(np.where(n <= room - side, seconds + side * head, np.inf))
    hops = [float(draw(st.integers(0, 40)))] * (n_devices - 1)
    return np.array(sides[0]), np.array(sides[1]), hops


@settings(max_examples=2000, deadline=None)
@given(rising_stages())
def test_dp_and_selection_rule_reach_the_brute_force_bottleneck(stages: Stages) -> None:
    everything = brute_force(*stages)
    dp, rule = paper_dp(*stages), selection_rule(*stages)
    if not everything:
        assert dp is None and rule is None
        return
    least = min(one.bottleneck_seconds for one in everything)
    assert dp is not None and rule is not None
    for found in (dp, rule):
        assert found.bottleneck_seconds == least
        assert sum(found.counts) == stages[0].shape[1] - 1
    same = next(one for one in everything if (one.counts, one.master) == (rule.counts, rule.master))
    assert same.bottleneck_seconds <= least
    assert same.pass_seconds == rule.pass_seconds


@settings(max_examples=500, deadline=None)
@given(rising_stages())
def test_selection_rule_has_the_shortest_pass_among_its_equals_when_costs_curve_upwards(
    stages: Stages,
) -> None:
    everything = brute_force(*stages)
    rule = selection_rule(*stages)
    if rule is None:
        return
    equals = [one for one in everything if one.bottleneck_seconds <= rule.bottleneck_seconds]
    assert rule.pass_seconds == min(one.pass_seconds for one in equals)


@settings(max_examples=1000, deadline=None)
@given(rising_stages(), st.randoms(use_true_random=False))
def test_minimum_sum_is_exact_even_for_costs_of_any_shape(stages: Stages, chance: Random) -> None:
    workers, masters, _ = stages
    for side in (workers, masters):
        for row in side:
            row[1:] = chance.sample(list(row[1:]), len(row) - 1)
    everything = brute_force(workers, masters, [])
    found = minimum_sum(workers, masters)
    if not everything:
        assert found is None
        return
    assert found is not None
    assert found.pass_seconds == min(one.pass_seconds for one in everything)
    assert any(
        (one.counts, one.master, one.pass_seconds) == (found.counts, found.master, found.pass_seconds)
        for one in everything
    )


@settings(max_examples=300, deadline=None)
@given(rising_stages())
def test_serial_never_has_a_longer_pass_and_overlapped_never_a_slower_stage(stages: Stages) -> None:
    serial, overlapped = minimum_sum(*stages[:2]), selection_rule(*stages)
    if serial is None or overlapped is None:
        assert serial is None and overlapped is None
        return
    assert serial.pass_seconds <= overlapped.pass_seconds - sum(stages[2])
    assert max([serial.bottleneck_seconds, *stages[2]]) >= overlapped.bottleneck_seconds


def test_weak_device_gets_the_fewest_blocks() -> None:
    n = np.arange(25.0)
    stages = np.array([n * 0.001, n * 0.001, n * 0.004])
    found = selection_rule(stages, stages, [0.0, 0.0])
    assert found is not None
    assert min(found.counts) == found.counts[2]


def test_a_slow_link_is_a_stage_of_its_own() -> None:
    n = np.arange(11.0)
    stages = np.array([n * 0.001, n * 0.002])
    found = paper_dp(stages, stages, [0.05])
    assert found is not None
    assert found.bottleneck_seconds == pytest.approx(0.05)


def test_operating_points_together_equal_each_one_alone() -> None:
    rng = np.random.default_rng(0)
    steps = np.cumsum(rng.uniform(1, 2, (5, 3, 13)), axis=2)
    heads = steps + rng.uniform(0, 3, (5, 3, 1))
    together = select(steps, heads, np.zeros(5))
    for point in range(5):
        alone = selection_rule(steps[point], heads[point], [0.0, 0.0])
        assert alone is not None
        assert alone.bottleneck_seconds == together.bottleneck_seconds[point]
        assert alone.counts == tuple(together.counts[point])


def test_more_devices_than_blocks_is_no_replica() -> None:
    n = np.arange(3.0)
    stages = np.array([n, n, n])
    assert selection_rule(stages, stages, [0.0, 0.0]) is None
    assert paper_dp(stages, stages, [0.0, 0.0]) is None
    assert minimum_sum(stages, stages) is None

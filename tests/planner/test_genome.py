"""Two chromosomes: every child is a whole cluster, and mutations come as often as the paper says."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.core.evolve import EvolveSettings, EvolveState, evolve
from planner.core.genome import Genome, crossover, mutate, random_genome, random_sizes, repair
from tests.planner.cluster import QWEN, paper_problem


def is_whole(genome: Genome, n_devices: int) -> bool:
    return (
        sorted(genome.order) == list(range(n_devices))
        and sum(genome.sizes) == n_devices
        and min(genome.sizes) > 0
    )


def test_the_papers_example_of_an_order_and_a_grouping() -> None:
    assert Genome((0, 1, 2, 3, 4, 5), (3, 1, 2)).groups == ((0, 1, 2), (3,), (4, 5))


@given(st.integers(1, 12), st.integers(0, 10**6))
def test_children_and_mutants_use_every_device_once(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    first, second = random_genome(n, rng), random_genome(n, rng)
    child = crossover(first, second, rng)
    for genome in (first, second, child, mutate(child, rng), mutate(mutate(child, rng), rng)):
        assert is_whole(genome, n)


@given(st.lists(st.integers(0, 6), min_size=7, max_size=7))
def test_repair_replaces_doubles_only(order: list[int]) -> None:
    repaired = repair(tuple(order))
    assert sorted(repaired) == list(range(7))
    firsts = [k for k, device in enumerate(order) if device not in order[:k]]
    assert all(repaired[k] == order[k] for k in firsts)


def test_mutation_fires_in_three_of_ten_and_mostly_regroups() -> None:
    rng = np.random.default_rng(0)
    start = Genome(tuple(range(10)), (2, 3, 1, 4))
    kinds: Counter[str] = Counter()
    for _ in range(20_000):
        mutant = mutate(start, rng)
        moved, regrouped = mutant.order != start.order, mutant.sizes != start.sizes
        kinds["both" if moved and regrouped else "order" if moved else "sizes" if regrouped else "none"] += 1
    shares = {kind: count / 20_000 for kind, count in kinds.items()}
    # A swap of a device with itself and a grouping drawn as it was change nothing: each share is a little lower.
    assert shares["order"] == pytest.approx(0.3 * 0.20 * 0.9, abs=0.006)
    assert shares["sizes"] == pytest.approx(0.3 * 0.65, abs=0.02)
    assert shares["both"] == pytest.approx(0.3 * 0.15, abs=0.006)


def test_sizes_are_drawn_border_by_border() -> None:
    rng = np.random.default_rng(0)
    replicas = [len(random_sizes(9, rng)) for _ in range(4000)]
    assert np.mean(replicas) == pytest.approx(1 + 8 / 2, abs=0.1)


def test_the_best_is_never_lost_and_evaluations_only_grow() -> None:
    settings = EvolveSettings(population=10, generations=15)
    generations = list(evolve(paper_problem(QWEN), settings, np.random.default_rng(3)))
    best = [one.best_seconds for one in generations if one.best_seconds is not None]
    assert best == sorted(best, reverse=True)
    counts = [one.evaluations for one in generations]
    assert counts == sorted(counts)
    assert [one.number for one in generations] == list(range(1, 16))


def test_a_state_survives_its_checkpoint() -> None:
    *_, last = evolve(
        paper_problem(QWEN, 1, 2), EvolveSettings(population=6, generations=3), np.random.default_rng(0)
    )
    assert EvolveState.from_dict(last.state.to_dict()) == last.state

"""Splits of many groups at once against every way to divide the blocks, with links that differ."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.core.catalogue import Catalogue
from planner.core.slots import Group
from tests.planner.cluster import linked, random_problem

POINT = 1  # two slots, or two sequences in each micro-batch


def compositions(blocks: int, parts: int) -> list[tuple[int, ...]]:
    if parts == 1:
        return [(blocks,)]
    return [(n, *rest) for n in range(1, blocks) for rest in compositions(blocks - n, parts - 1)]


def hops(catalogue: Catalogue, group: Group, master: int, role: str) -> list[float]:
    points = catalogue.points(role, len(group))
    if catalogue.problem.policy.topology == "star":
        pairs = [(group[master], kind) for k, kind in enumerate(group) if k != master]
        pairs *= 2
    else:
        pairs = list(zip(group, group[1:], strict=False))
    return [float(points.hop(a, b)[POINT]) for a, b in pairs]


def every_split(
    catalogue: Catalogue, group: Group, role: str
) -> dict[tuple[int, tuple[int, ...]], list[float]]:
    """Master and blocks -> the seconds of the stages and hops."""
    points = catalogue.points(role, len(group))
    found = {}
    for counts in compositions(points.blocks, len(group)):
        for master in range(len(group)):
            stages = [
                float(points.seconds(kind)[int(k == master), POINT, n])
                for k, (kind, n) in enumerate(zip(group, counts, strict=True))
            ]
            found[master, counts] = stages + hops(catalogue, group, master, role)
    return found


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from(["serial", "overlapped"]),
    st.sampled_from(["star", "chain"]),
    st.sampled_from(["decode", "mixed"]),
    st.booleans(),
)
def test_splits_of_many_groups_are_the_best_of_all(
    seed: int, runtime: str, topology: str, role: str, are_links_different: bool
) -> None:
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, 4, runtime=runtime, topology=topology, max_slots=8)
    if are_links_different:
        problem = linked(problem, rng)
    catalogue = Catalogue(problem)
    for size in (1, 2, 3, 4):
        groups = list(combinations(range(4), size))
        splits = catalogue.splits(role, groups)
        assert splits is not None
        for number, group in enumerate(groups):
            every = every_split(catalogue, group, role)
            reached = float(splits.pass_seconds[number, POINT])
            if runtime == "serial":
                best = min(sum(parts) for parts in every.values())
            else:
                floor = float(catalogue.points(role, size).hop_floor(group)[POINT])
                best = min(max(*parts[:size], floor) for parts in every.values())
                assert splits.bottleneck_seconds[number, POINT] == pytest.approx(best)
            if np.isfinite(reached):
                counts = splits.counts(np.array([number]), np.array([POINT]))[0]
                own = every[int(splits.master[number, POINT]), tuple(counts.tolist())]
                assert sum(own) == pytest.approx(reached)
            if runtime == "serial":
                assert reached == pytest.approx(best)

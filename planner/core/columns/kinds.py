"""Large clusters of few kinds: replicas are multisets of kinds, and all of them up to a size are columns."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations_with_replacement
from math import comb

from planner.core.catalogue import Catalogue, Option
from planner.core.columns.program import Program, kind_counts
from planner.core.columns.step import ColumnsStep
from planner.core.objective import Objective
from planner.core.slots import DECODE, MIXED, PREFILL, Group

MOST_COLUMNS = 700
FEWEST_DEVICES_PER_REPLICA = 3
GROUPS_BETWEEN_STEPS = 128


def largest_replica(catalogue: Catalogue) -> int:
    """Devices per replica for which all multisets of kinds can be worked out; 0 when there are too many kinds."""
    kinds = len(catalogue.costs.kinds)
    size = 0
    while size < len(catalogue.problem.devices) and comb(kinds + size + 1, size + 1) <= MOST_COLUMNS:
        size += 1
    return size if size >= FEWEST_DEVICES_PER_REPLICA else 0


def solve(catalogue: Catalogue, objective: Objective, allow_mixed: bool) -> Iterator[ColumnsStep]:
    """Yield progress, then the best plan with replicas of at most `largest_replica` devices, and a bound for it."""
    assert objective.is_wait, "the program is built for the burst formula"
    groups = list(_groups(kind_counts(catalogue), largest_replica(catalogue)))
    roles = [PREFILL, DECODE] + ([MIXED] if allow_mixed else [])
    options: dict[str, list[Option]] = {role: [] for role in roles}
    for start in range(0, len(groups), GROUPS_BETWEEN_STEPS):
        some = groups[start : start + GROUPS_BETWEEN_STEPS]
        for role in roles:
            catalogue.work_out(role, some)
            options[role] += [option for group in some for option in catalogue.options(role, group)]
        yield ColumnsStep(f"{start} of {len(groups)} groups", 0.8 * start / len(groups))
    programs = [Program(catalogue, objective, options[PREFILL], options[DECODE])]
    if allow_mixed:
        programs.append(Program(catalogue, objective, [], options[MIXED]))
    results = []
    for program in programs:
        yield ColumnsStep("integer program", 0.9)
        results.append(program.best())
    bounds = [result.bound_seconds for result in results if result.bound_seconds is not None]
    feasible = [result for result in results if result.seconds is not None]
    if not feasible:
        yield ColumnsStep("integer program", 1.0)
        return
    best = min(feasible, key=lambda result: (result.seconds, result.load))
    yield ColumnsStep("integer program", 1.0, best.choices, best.seconds, min(bounds))


def _groups(counts: dict[int, int], limit: int) -> Iterator[Group]:
    for size in range(1, limit + 1):
        for group in combinations_with_replacement(sorted(counts), size):
            if all(group.count(kind) <= counts[kind] for kind in group):
                yield group

"""Proven optima for small clusters: every group worked out once, then set partitions over bit masks.

Waits depend only on sums over replicas (rates and slots), so for every set of devices the best partition into
replicas of one role is found first; prefill then takes one set of devices and decode the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from planner.core.assembly import Choice
from planner.core.catalogue import Catalogue, Option
from planner.core.memory import Floats, Ints
from planner.core.objective import SPLITWISE, Objective
from planner.core.partitions import Offers, Partition, Partitions, Used
from planner.core.slots import DECODE, MIXED, PREFILL

ALL_GROUPS_DEVICES = 8
MOST_DEVICES = 16
LIMITED_REPLICA_DEVICES = 4
NEWTON_STEPS = 40
KEPT_PLANS = 60
GROUPS_BETWEEN_STEPS = 256
TIE_SECONDS = 1e-9


@dataclass(frozen=True)
class Ranked:
    """A plan with its closed-form value."""

    seconds: float
    choices: tuple[Choice, ...]


@dataclass(frozen=True)
class ExactStep:
    """Progress of the exact solver; the last one carries the plans, best first, and whether the best is proven."""

    done: int
    total: int
    plans: tuple[Ranked, ...] = ()
    proven: bool = False


class Found(NamedTuple):
    """A plan as rows of the offers it is made of."""

    seconds: float
    prefill: tuple[Used, ...]
    serving: tuple[Used, ...]


def replica_limit(n_devices: int) -> int:
    """How many devices a replica may have while the exact solver stays quick."""
    return n_devices if n_devices <= ALL_GROUPS_DEVICES else LIMITED_REPLICA_DEVICES


def solve(catalogue: Catalogue, objective: Objective, allow_mixed: bool) -> Iterator[ExactStep]:
    """Yield progress, then the optimum over all groupings, roles and idle devices with the runners-up."""
    assert objective.name != SPLITWISE, "adapted Splitwise ties roles to the grouping: its value is no sum"
    n = len(catalogue.problem.devices)
    assert n <= MOST_DEVICES, "the number of sets doubles with every device"
    limit = replica_limit(n)
    masks = [mask for mask in range(1, 1 << n) if mask.bit_count() <= limit]
    groups = [catalogue.group_of(devices_of(mask)) for mask in masks]
    roles = [PREFILL, DECODE] + ([MIXED] if allow_mixed else [])
    for start in range(0, len(masks), GROUPS_BETWEEN_STEPS):
        for role in roles:
            catalogue.work_out(role, groups[start : start + GROUPS_BETWEEN_STEPS])
        yield ExactStep(min(len(masks), start + GROUPS_BETWEEN_STEPS), len(masks))
    offers = {role: offers_of(catalogue, role, masks, objective) for role in roles}
    solver = PartitionSolver(Partitions(n, limit, catalogue.problem.policy.allow_idle), objective)
    plans = solver.disaggregated(offers[PREFILL], offers[DECODE])
    if allow_mixed:
        plans += solver.mixed(offers[MIXED])
    ordered = sorted(plans, key=lambda one: one.seconds)
    yield ExactStep(len(masks), len(masks), tuple(ordered), proven=limit == n)


def devices_of(mask: int) -> tuple[int, ...]:
    return tuple(k for k in range(mask.bit_length()) if mask >> k & 1)


def offers_of(catalogue: Catalogue, role: str, masks: Sequence[int], objective: Objective) -> Offers | None:
    """The options of all these sets of devices; None when no set can serve in this role."""
    found = []
    for mask in masks:
        place = catalogue.place(role, catalogue.group_of(devices_of(mask)))
        if place is not None:
            found.append((mask, place))
    if not found:
        return None
    lengths = [place.rows.stop - place.rows.start for _, place in found]
    first = np.cumsum([0, *lengths])

    def option(row: int) -> Option:
        number = int(np.searchsorted(first, row, side="right")) - 1
        group = catalogue.group_of(devices_of(found[number][0]))
        return catalogue.options(role, group)[row - int(first[number])]

    return Offers(
        np.repeat([mask for mask, _ in found], lengths),
        np.concatenate([place.table.slots[place.rows] for _, place in found]),
        np.concatenate([objective.rates(place.table)[place.rows] for _, place in found]),
        option,
    )


class PartitionSolver:
    def __init__(self, partitions: Partitions, objective: Objective) -> None:
        self.partitions = partitions
        self.objective = objective

    def disaggregated(self, prefill: Offers | None, decode: Offers | None) -> list[Ranked]:
        """Prefill takes a set of devices, decode the rest: all 2^n such divisions, by Newton steps on the wait."""
        if prefill is None or decode is None:
            return []
        first = self.partitions.best(prefill, self.objective, self.objective.first_thetas[0])
        sets = np.arange(self.partitions.size)
        rest = self.partitions.size - 1 - sets
        found: list[Found] = []
        for second, seconds in self._newton(decode, lambda second: self._divided(first, second, rest)):
            load = self.objective.utilisation(first.rate, second.rate[rest])
            for k in np.lexsort((load, np.round(seconds, 9)))[:KEPT_PLANS].tolist():
                if np.isfinite(seconds[k]):
                    teams = first.replicas(int(sets[k])), second.replicas(int(rest[k]))
                    found.append(Found(float(seconds[k]), *teams))
        return _ranked(found, prefill, decode)

    def _divided(self, first: Partition, second: Partition, rest: Ints) -> Floats:
        """The value of each division of the devices between prefill and decode."""
        usable = (first.value > 0) & (second.value[rest] > 0)
        seconds = self.objective.seconds(
            np.where(usable, first.rate, 1.0), np.where(usable, second.rate[rest], 1.0), second.slots[rest]
        )
        return np.where(usable, seconds, np.inf)

    def mixed(self, offers: Offers | None) -> list[Ranked]:
        if offers is None:
            return []
        everything = self.partitions.size - 1

        def values(partition: Partition) -> Floats:
            if partition.value[everything] <= 0 or partition.rate[everything] <= 0:
                return np.array([np.inf])
            return np.atleast_1d(
                self.objective.seconds(np.inf, partition.rate[everything], partition.slots[everything])
            )

        found = [
            Found(float(seconds[0]), (), partition.replicas(everything))
            for partition, seconds in self._newton(offers, values)
            if np.isfinite(seconds[0])
        ]
        return _ranked(found, None, offers)

    def _newton(
        self, offers: Offers, values: Callable[[Partition], Floats]
    ) -> Iterator[tuple[Partition, Floats]]:
        """Partitions for the most rate, the most slots, and then the weight that the best wait so far asks for."""
        best = np.inf
        for theta in self.objective.first_thetas:
            partition = self.partitions.best(offers, self.objective, theta)
            seconds = values(partition)
            best = min(best, float(seconds.min()))
            yield partition, seconds
        for _ in range(NEWTON_STEPS):
            if not self.objective.is_wait or not 0 < best < np.inf:
                return
            partition = self.partitions.best(offers, self.objective, self.objective.theta(best))
            seconds = values(partition)
            yield partition, seconds
            if float(seconds.min()) >= best - TIE_SECONDS:
                return
            best = float(seconds.min())


def _ranked(found: Sequence[Found], prefill: Offers | None, serving: Offers) -> list[Ranked]:
    """Different plans only, their rows made into options."""
    unique = {(one.prefill, one.serving): one for one in sorted(found, key=lambda one: -one.seconds)}
    ranked = []
    for one in unique.values():
        choices = [(devices_of(used.devices), serving.option(used.row)) for used in one.serving]
        for used in one.prefill:
            assert prefill is not None, "only what was offered is used"
            choices.append((devices_of(used.devices), prefill.option(used.row)))
        ranked.append(Ranked(one.seconds, tuple(sorted(choices, key=lambda choice: choice[0]))))
    return ranked

"""Proven optima for small clusters: every group worked out once, then set-partition programs over bit masks.

Waits depend only on sums over replicas (rates and slots), so for every set of devices the best partition into
replicas of one role is found first; prefill then takes one set of devices and decode the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from planner.core.assembly import Choice
from planner.core.catalogue import Catalogue, Option
from planner.core.memory import Floats, Ints
from planner.core.objective import SPLITWISE, Objective
from planner.core.slots import DECODE, MIXED, PREFILL

ALL_GROUPS_DEVICES = 8
MOST_DEVICES = 16
LIMITED_REPLICA_DEVICES = 4
NEWTON_STEPS = 40
KEPT_PLANS = 60
GROUPS_BETWEEN_STEPS = 64
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


@dataclass(frozen=True)
class Partition:
    """For every set of devices (a bit mask) the best partition into replicas of one role."""

    value: Floats
    rate: Floats
    slots: Floats
    last_group: Ints  # the replica that holds the set's highest device, or 0 where that device stands idle
    options: tuple[Option | None, ...]  # the option chosen for each possible replica

    def groups(self, devices: int) -> list[int]:
        """The replicas of the best partition of a set."""
        found = []
        while devices:
            group = int(self.last_group[devices])
            if group:
                found.append(group)
            devices &= ~group if group else (1 << (devices.bit_length() - 1)) - 1
        return found


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
    roles = [PREFILL, DECODE] + ([MIXED] if allow_mixed else [])
    options: dict[str, dict[int, tuple[Option, ...]]] = {role: {} for role in roles}
    for number, mask in enumerate(masks):
        group = catalogue.group_of(devices_of(mask))
        for role in roles:
            found = catalogue.options(role, group)
            if found:
                options[role][mask] = found
        if number % GROUPS_BETWEEN_STEPS == GROUPS_BETWEEN_STEPS - 1:
            yield ExactStep(number + 1, len(masks))
    solver = PartitionSolver(n, objective, catalogue.problem.policy.allow_idle)
    plans = solver.disaggregated(options[PREFILL], options[DECODE])
    if allow_mixed:
        plans += solver.mixed(options[MIXED])
    unique = {ranked.choices: ranked for ranked in sorted(plans, key=lambda one: -one.seconds)}
    ordered = sorted(unique.values(), key=lambda one: one.seconds)
    yield ExactStep(len(masks), len(masks), tuple(ordered), proven=limit == n)


def devices_of(mask: int) -> tuple[int, ...]:
    return tuple(k for k in range(mask.bit_length()) if mask >> k & 1)


class PartitionSolver:
    def __init__(self, n_devices: int, objective: Objective, allow_idle: bool) -> None:
        self.n = n_devices
        self.objective = objective
        self.allow_idle = allow_idle
        self._supersets: dict[tuple[int, int], Ints] = {}

    def disaggregated(
        self, prefill: dict[int, tuple[Option, ...]], decode: dict[int, tuple[Option, ...]]
    ) -> list[Ranked]:
        """Prefill takes a set of devices, decode the rest: all 2^n such divisions, by Newton steps on the wait."""
        if not prefill or not decode:
            return []
        first = self._partition(
            {mask: found[0] for mask, found in prefill.items()}, self.objective.first_thetas[0]
        )
        sets = np.arange(1 << self.n)
        rest = (1 << self.n) - 1 - sets

        def values(second: Partition) -> Floats:
            usable = (first.value > 0) & (second.value[rest] > 0)
            seconds = self.objective.seconds(
                np.where(usable, first.rate, 1.0),
                np.where(usable, second.rate[rest], 1.0),
                second.slots[rest],
            )
            return np.where(usable, seconds, np.inf)

        plans = []
        for second, seconds in self._newton(decode, values):
            load = self.objective.utilisation(
                np.maximum(first.rate, 1e-300), np.maximum(second.rate[rest], 1e-300)
            )
            best = np.lexsort((load, np.round(seconds, 9)))[:KEPT_PLANS]
            for index in best[np.isfinite(seconds[best])]:
                choices = _choices(first, int(sets[index])) + _choices(second, int(rest[index]))
                plans.append(Ranked(float(seconds[index]), _ordered(choices)))
        return plans

    def mixed(self, options: dict[int, tuple[Option, ...]]) -> list[Ranked]:
        if not options:
            return []
        everything = np.array([(1 << self.n) - 1])

        def values(partition: Partition) -> Floats:
            rate = partition.rate[everything]
            usable = (partition.value[everything] > 0) & (rate > 0)
            seconds = self.objective.seconds(np.inf, np.where(usable, rate, 1.0), partition.slots[everything])
            return np.where(usable, seconds, np.inf)

        return [
            Ranked(float(seconds[0]), _ordered(_choices(partition, int(everything[0]))))
            for partition, seconds in self._newton(options, values)
            if np.isfinite(seconds[0])
        ]

    def _newton(
        self, options: dict[int, tuple[Option, ...]], values: Callable[[Partition], Floats]
    ) -> Iterator[tuple[Partition, Floats]]:
        """Partitions for the most rate, the most slots, and then the weight that the best wait so far asks for."""
        best = np.inf
        for theta in self.objective.first_thetas:
            partition = self._partition(self._pick(options, theta), theta)
            seconds = values(partition)
            best = min(best, float(seconds.min()))
            yield partition, seconds
        for _ in range(NEWTON_STEPS):
            if not self.objective.is_wait or not 0 < best < np.inf:
                return
            theta = self.objective.theta(best)
            partition = self._partition(self._pick(options, theta), theta)
            seconds = values(partition)
            yield partition, seconds
            if float(seconds.min()) >= best - TIE_SECONDS:
                return
            best = float(seconds.min())

    def _pick(self, options: dict[int, tuple[Option, ...]], theta: float) -> dict[int, Option]:
        picked = {mask: self.objective.pick(found, theta) for mask, found in options.items()}
        return {mask: option for mask, option in picked.items() if option is not None}

    def _partition(self, chosen: dict[int, Option], theta: float) -> Partition:
        """Best sum of values over partitions of every set: the replica of the highest device is tried in all ways."""
        size = 1 << self.n
        value, rate, slots = np.full(size, -np.inf), np.zeros(size), np.zeros(size)
        last = np.zeros(size, dtype=np.int64)
        value[0] = 0.0
        by_top: list[list[int]] = [[] for _ in range(self.n)]
        for mask in sorted(chosen):
            by_top[mask.bit_length() - 1].append(mask)
        for top in range(self.n):
            base = 1 << top
            if self.allow_idle:
                for array in (value, rate, slots):
                    array[base : 2 * base] = array[:base]
            for mask in by_top[top]:
                option = chosen[mask]
                index = self._sets_with(mask, top)
                without = index ^ mask
                reached = value[without] + self.objective.value(option, theta)
                better = reached > value[index]
                index, without = index[better], without[better]
                value[index] = reached[better]
                rate[index] = rate[without] + self.objective.rate(option)
                slots[index] = slots[without] + option.slots
                last[index] = mask
        options: list[Option | None] = [None] * size
        for mask, option in chosen.items():
            options[mask] = option
        return Partition(value, rate, slots, last, tuple(options))

    def _sets_with(self, mask: int, top: int) -> Ints:
        """All sets of devices up to `top` that contain the mask."""
        key = (mask, top)
        if key not in self._supersets:
            index = np.array([mask], dtype=np.int64)
            for bit in range(top):
                if not mask >> bit & 1:
                    index = np.concatenate([index, index | (1 << bit)])
            self._supersets[key] = index
        return self._supersets[key]


def _choices(partition: Partition, devices: int) -> list[Choice]:
    found = []
    for group in partition.groups(devices):
        option = partition.options[group]
        assert option is not None, "a partition is made of groups that have an option"
        found.append((devices_of(group), option))
    return found


def _ordered(choices: Sequence[Choice]) -> tuple[Choice, ...]:
    return tuple(sorted(choices, key=lambda choice: choice[0]))

"""Set partitions over bit masks: for every set of devices the best way to divide it into replicas of one role."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.core.catalogue import Option
from planner.core.memory import Floats, Ints
from planner.core.objective import Objective


class Used(NamedTuple):
    """A replica in a partition: its devices as a bit mask, and the row of its option."""

    devices: int
    row: int


class Offers:
    """Every option of one role: its devices as a bit mask (rising; most slots first), its slots and its rate."""

    def __init__(self, devices: Ints, slots: Ints, rate: Floats, option: Callable[[int], Option]) -> None:
        self.slots = slots
        self.rate = rate
        self.option = option
        self.groups, self.first = np.unique(devices, return_index=True)
        lengths = np.diff(np.append(self.first, len(devices)))
        self._number = np.repeat(np.arange(len(lengths)), lengths)  # of the group that a row belongs to

    def picked(self, objective: Objective, theta: float) -> tuple[Ints, Floats]:
        """The row that suits each group best when a request per second is worth theta, and its value."""
        values = objective.values(self.slots, self.rate, theta)
        if not objective.is_wait:
            return self.first, values[self.first]
        best = np.maximum.reduceat(values, self.first)
        rows = np.arange(len(values))
        is_best = values == best[self._number]
        return np.minimum.reduceat(np.where(is_best, rows, len(rows)), self.first), best


@dataclass(frozen=True)
class Partition:
    """The best partition of every set of devices: sums over its replicas, and what the set is made of."""

    value: Floats
    rate: Floats
    slots: Floats
    last_group: Ints  # the replica that holds the set's highest device, or 0 where that device stands idle
    row: Ints  # the option chosen for each possible replica

    def replicas(self, devices: int) -> tuple[Used, ...]:
        """The replicas of the best partition of a set."""
        found = []
        while devices:
            group = int(self.last_group[devices])
            if group:
                found.append(Used(group, int(self.row[group])))
            devices &= ~group if group else (1 << (devices.bit_length() - 1)) - 1
        return tuple(found)


class _Level(NamedTuple):
    """Sets with the same highest device and size: [set], and the groups of each that hold that device: [set, group]."""

    sets: NDArray[np.int32]
    groups: NDArray[np.int32]


class Partitions:
    """Best partitions of all sets of n devices into groups of at most `limit`."""

    def __init__(self, n_devices: int, limit: int, allow_idle: bool) -> None:
        self.size = 1 << n_devices
        self.allow_idle = allow_idle
        self._levels = [list(_levels(top, limit)) for top in range(n_devices)]

    def best(self, offers: Offers, objective: Objective, theta: float) -> Partition:
        """The largest sum of values: the group of the highest device is tried in all ways."""
        picked, values = offers.picked(objective, theta)
        gain, row = np.full(self.size, -np.inf), np.zeros(self.size, dtype=np.int64)
        gain[offers.groups], row[offers.groups] = values, picked
        value, last = np.full(self.size, -np.inf), np.zeros(self.size, dtype=np.int64)
        value[0] = 0.0
        rate, slots = np.zeros(self.size), np.zeros(self.size)
        for top, levels in enumerate(self._levels):
            if self.allow_idle:
                for array in (value, rate, slots):
                    array[1 << top : 2 << top] = array[: 1 << top]
            for level in levels:
                reached = value[level.sets[:, None] ^ level.groups] + gain[level.groups]
                best = reached.argmax(axis=1)
                at = np.arange(len(best))
                better = reached[at, best] > value[level.sets]
                sets, group = level.sets[better], level.groups[at, best][better]
                value[sets] = reached[at, best][better]
                rate[sets] = rate[sets ^ group] + offers.rate[row[group]]
                slots[sets] = slots[sets ^ group] + offers.slots[row[group]]
                last[sets] = group
        return Partition(value, rate, slots, last, row)


def _levels(top: int, limit: int) -> Iterator[_Level]:
    lower = np.arange(1 << top)
    is_in = lower[:, None] >> np.arange(top) & 1  # [set, device]
    for others in range(top + 1):
        sets = lower[is_in.sum(axis=1) == others]
        bits = (1 << np.nonzero(is_in[sets])[1]).reshape(len(sets), others)
        chosen = np.arange(1 << others)[:, None] >> np.arange(others) & 1
        chosen = chosen[chosen.sum(axis=1) < limit]
        # As floats, because numpy multiplies matrices of integers slowly; masks are far below 2^53.
        groups = (bits.astype(np.float64) @ chosen.T.astype(np.float64)).astype(np.int32)
        yield _Level((sets | 1 << top).astype(np.int32), groups | np.int32(1 << top))

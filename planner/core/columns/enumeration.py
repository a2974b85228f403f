"""Every replica of few devices at once, serial runtime, by what it could do at best: columns for a bound.

The figures are never worse than those of the real replica (its port is taken as if the master held every block), so a
bound over them is a bound for every real plan with replicas of so many devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from math import comb

import numpy as np

from planner.core.catalogue import Catalogue, Option
from planner.core.memory import Floats, Ints
from planner.core.objective import Objective
from planner.core.partition import min_plus
from planner.core.slots import DECODE, PREFILL, Group, RolePoints

MOST_GROUPS = 50_000
OFFERED = 60  # replicas of each pricing


def enumerable_size(n_kinds: int) -> int:
    """Devices per replica up to which all groups are looked at."""
    size, total = 0, 0
    while size < n_kinds and total + comb(n_kinds, size + 1) <= MOST_GROUPS:
        size += 1
        total += comb(n_kinds, size)
    return size


class Enumeration:
    """All groups of up to `size` kinds in one role, prefill or decode: rates are [group, operating point]."""

    def __init__(self, catalogue: Catalogue, role: str, size: int) -> None:
        assert role in (PREFILL, DECODE), "the worst pace of a mixed replica depends on its split"
        self.catalogue = catalogue
        self.points = catalogue.points(role, 1)
        self.role = role
        self.size = size
        self.kinds = sorted(catalogue.costs.kinds)
        self.groups: list[Group] = []
        self.members = np.zeros((0, len(self.kinds)))
        self.rate = np.zeros((0, len(self.points.slots)))

    def work_out(self) -> Iterator[float]:
        """Yield the share done while groups grow by one device at a time."""
        chains = _Chains(self.points, self.kinds)
        seconds = []
        for size in range(1, self.size + 1):
            groups = list(combinations(self.kinds, size))
            index = {group: k for k, group in enumerate(groups)}
            best = np.full((len(groups), len(self.points.slots)), np.inf)
            for number, master in enumerate(self.kinds):
                rows, passes = chains.with_master(master, index)
                best[rows] = np.minimum(best[rows], passes)
                yield (size - 1 + number / len(self.kinds)) / self.size
            seconds.append(best)
            self.groups += groups
            if size < self.size:
                chains = chains.longer()
        self.rate = self._rates(np.concatenate(seconds))
        able = np.flatnonzero((self.rate > 0).any(axis=1))
        self.groups, self.rate = [self.groups[k] for k in able], self.rate[able]
        self.members = np.array(
            [[kind in group for kind in self.kinds] for group in self.groups], dtype=np.float64
        )

    def best(
        self, prices: dict[int, float], objective: Objective, theta: float
    ) -> tuple[float, list[Option]]:
        """The largest value less prices (of decode value, or theta for each prompt rate), and replicas near it."""
        worth = self._worth(objective, theta)
        gain = worth.max(axis=1) - self._paid(prices)
        order = np.argsort(-gain, kind="stable")[:OFFERED]
        offered = [self._option(int(k), int(worth[k].argmax())) for k in order if gain[k] > 0]
        return float(gain.max(initial=-np.inf)), offered

    def nearest(
        self, prices: dict[int, float], objective: Objective, theta: float, count: int
    ) -> list[Group]:
        """The replicas that come nearest to being worth their price."""
        gain = self._worth(objective, theta).max(axis=1) - self._paid(prices)
        return [self.groups[int(k)] for k in np.argsort(-gain, kind="stable")[:count]]

    def _worth(self, objective: Objective, theta: float) -> Floats:
        constant = 0.0 if self.role == PREFILL else objective.slot_weight * self.points.slots
        return np.where(self.rate > 0, constant + theta * self.rate, -np.inf)

    def _paid(self, prices: dict[int, float]) -> Floats:
        return np.asarray(self.members @ np.array([prices[kind] for kind in self.kinds]))

    def _rates(self, seconds: Floats) -> Floats:
        problem = self.catalogue.problem
        if self.role == PREFILL:
            rate = 1.0 / seconds
        else:
            rate = self.points.slots / (problem.workload.output_tokens * seconds)
            rate = np.where(seconds * problem.policy.min_tokens_per_second <= 1 + 1e-12, rate, 0.0)
        ports = max(problem.nic_bytes_per_second(device.name) for device in problem.devices)
        size = problem.model.handoff_bytes(problem.workload.input_tokens)
        return np.minimum(rate, ports / size) if problem.policy.handover and size else rate

    def _option(self, group: int, row: int) -> Option:
        """What the bound counts with; a real replica of these devices may do less."""
        rate = float(self.rate[group, row])
        slots = int(self.points.slots[row])
        blocks = (0,) * len(self.groups[group])
        return Option(
            self.groups[group], self.role, slots, slots, 0, blocks, 0.0, 0.0, 0.0, 0.0, 0.0, rate, rate
        )


class _Chains:
    """Workers that share n blocks, for all groups of one size: [group, operating point, n]."""

    def __init__(self, points: RolePoints, kinds: list[int]) -> None:
        hops = 2 if points.star else 1
        self.points = points
        self.kinds = kinds
        self.worker = {k: points.seconds(k)[0] + hops * points.hop(k, k)[:, None] for k in kinds}
        nothing = np.full((1, len(points.slots), points.blocks + 1), np.inf)
        nothing[..., 0] = 0.0
        self.groups: list[Group] = [()]
        self.seconds = nothing

    def with_master(self, master: int, index: dict[Group, int]) -> tuple[Ints, Floats]:
        """Pass of every chain with this master added: rows of `index`, and [row, operating point]."""
        free = [k for k, group in enumerate(self.groups) if master not in group]
        own = self.points.seconds(master)[1][:, 1:]
        passes = (self.seconds[free][..., self.points.blocks - 1 :: -1] + own).min(axis=2)
        rows = np.array([index[tuple(sorted((*self.groups[k], master)))] for k in free], dtype=np.int64)
        return rows, passes

    def longer(self) -> _Chains:
        """One more worker, of a kind after the last one of the group."""
        longer = _Chains(self.points, self.kinds)
        groups: list[Group] = []
        parts = []
        for kind in self.kinds:
            before = [k for k, group in enumerate(self.groups) if not group or group[-1] < kind]
            if not before:
                continue
            rows = self.seconds[before].reshape(-1, self.points.blocks + 1)
            joined, _ = min_plus(rows, np.tile(self.worker[kind], (len(before), 1)))
            parts.append(joined.reshape(len(before), -1, self.points.blocks + 1))
            groups += [(*self.groups[k], kind) for k in before]
        longer.groups, longer.seconds = groups, np.concatenate(parts)
        return longer

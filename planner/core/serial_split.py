"""Splits with the shortest pass for many groups: one batch walks the stages in turn, so the sum is what counts.

The devices are divided in two sides once and for all. Every way to share n blocks among the devices of one side is
worked out once; a group then only joins what its devices of either side can do, which takes N steps instead of N^2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.core.memory import Floats, Ints
from planner.core.partition import min_plus
from planner.core.slots import Gathered, Group, RolePoints, Rows, Splits

ANY_MASTER = -1  # where links are equal, a worker's cost does not depend on who its master is


@dataclass(frozen=True)
class _Chain:
    """Workers that share n blocks: seconds, and how many the last of them takes; [operating point, n]."""

    seconds: Floats
    last: NDArray[np.int16]


@dataclass(frozen=True)
class _Headed:
    """Devices with a master among them that share n blocks; [operating point, n]."""

    seconds: Floats
    taken: NDArray[np.int16]  # by the master
    master: NDArray[np.int16]  # its position among these devices


class _Side(NamedTuple):
    """Devices of one side, and the positions of those among them that may be the master."""

    devices: Group
    masters: tuple[int, ...]


class _Join(NamedTuple):
    """A group that a side with a master belongs to, with its other devices."""

    group: int
    others: Group
    offset: int  # position of the side's first device in the group


class SerialSplits:
    def __init__(self, points: RolePoints) -> None:
        self.points = points
        self.middle = len(points.costs.kinds) // 2
        self.master_matters = points.has_pairs and points.star
        self._chains: dict[tuple[int, Group], _Chain] = {}
        self._heads: dict[_Side, _Headed] = {}
        self._workers: dict[tuple[int, int], Floats] = {}

    def best(self, groups: Sequence[Group]) -> Splits:
        """The shortest pass of each of these groups of one size at each operating point."""
        shape = (len(groups), len(self.points.slots))
        passes = np.full(shape, np.inf)
        master, near = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        for side, joins in self._joins(groups).items():
            head, key = self._headed(side), self._key(side)
            beyond = np.stack([self._chain(key, join.others).seconds[:, ::-1] for join in joins])
            sums = beyond + head.seconds  # [join, operating point, blocks on the master's side]
            blocks = sums.argmin(axis=2)
            reached = np.take_along_axis(sums, blocks[..., None], axis=2)[..., 0]
            rows = np.array([join.group for join in joins])
            offset = np.array([join.offset for join in joins])[:, None]
            better = reached < passes[rows]
            passes[rows] = np.where(better, reached, passes[rows])
            near[rows] = np.where(better, blocks, near[rows])
            at = head.master[np.arange(shape[1]), blocks] + offset
            master[rows] = np.where(better, at, master[rows])
        passes += self._fixed_hops(groups, master)

        def counts(group: Ints, point: Ints) -> Ints:
            return self._counts(groups, Rows(group, point, master[group, point], near[group, point]))

        # The slowest stage does not matter here: the pass stands in for it.
        return Splits(passes, passes, master, counts)

    def _joins(self, groups: Sequence[Group]) -> dict[_Side, list[_Join]]:
        found: dict[_Side, list[_Join]] = {}
        for number, group in enumerate(groups):
            border = sum(kind < self.middle for kind in group)
            left, right = group[:border], group[border:]
            for devices, others, offset in ((left, right, 0), (right, left, border)):
                for side in self._sides(devices):
                    found.setdefault(side, []).append(_Join(number, others, offset))
        return found

    def _sides(self, devices: Group) -> list[_Side]:
        masters = tuple(k for k, kind in enumerate(devices) if k == 0 or devices[k - 1] != kind)
        if self.master_matters:
            return [_Side(devices, (master,)) for master in masters]
        return [_Side(devices, masters)] if masters else []

    def _key(self, side: _Side) -> int:
        return side.devices[side.masters[0]] if self.master_matters else ANY_MASTER

    def _fixed_hops(self, groups: Sequence[Group], master: Ints) -> Floats:
        """In a chain with unequal links the hops depend on the group alone."""
        if not self.points.has_pairs or self.points.star:
            return np.zeros(master.shape)
        every = np.indices(master.shape).reshape(2, -1)
        rows = Rows(every[0], every[1], master.reshape(-1), np.zeros((0, 0), dtype=np.int64))
        return Gathered(self.points, groups).hop_rows(self.points.hop, rows)[0].reshape(master.shape)

    def _counts(self, groups: Sequence[Group], rows: Rows) -> Ints:
        """Blocks of each device: [row, device]; `rows.counts` says how many lie on the master's side."""
        counts = np.zeros((len(rows.group), len(groups[0])), dtype=np.int64)
        teams = rows.group * len(groups[0]) + rows.master
        order = np.argsort(teams, kind="stable")
        for here in np.split(order, np.flatnonzero(np.diff(teams[order])) + 1) if len(order) else ():
            group, master = groups[rows.group[here[0]]], int(rows.master[here[0]])
            counts[here] = self._walk(group, master, rows.point[here], rows.counts[here])
        return counts

    def _walk(self, group: Group, master: int, point: Ints, near: Ints) -> Ints:
        """Back through what was added last, for one group and master: [row, device]."""
        border = sum(kind < self.middle for kind in group)
        start, end = (0, border) if master < border else (border, len(group))
        devices, at = group[start:end], master - start
        side = next(one for one in self._sides(devices) if at in one.masters)
        columns = np.zeros((len(group), len(point)), dtype=np.int64)
        columns[master] = self._headed(side).taken[point, near]
        inside = [k for k in range(start, end) if k != master]
        outside = [k for k in range(len(group)) if not start <= k < end]
        for positions, left in ((inside, near - columns[master]), (outside, self.points.blocks - near)):
            workers = tuple(group[k] for k in positions)
            for k in range(len(positions) - 1, 0, -1):
                columns[positions[k]] = self._chain(self._key(side), workers[: k + 1]).last[point, left]
                left = left - columns[positions[k]]
            if positions:
                columns[positions[0]] = left
        return columns.T

    def _headed(self, side: _Side) -> _Headed:
        if side not in self._heads:
            seconds, taken, masters = [], [], list(side.masters)
            for master in masters:
                others = side.devices[:master] + side.devices[master + 1 :]
                own = self.points.seconds(side.devices[master])[1]
                reached, blocks = min_plus(self._chain(self._key(side), others).seconds, own)
                seconds.append(reached)
                taken.append(blocks)
            best = np.argmin(seconds, axis=0)
            at = (best, *np.indices(best.shape))
            self._heads[side] = _Headed(
                np.array(seconds)[at], np.array(taken)[at], np.array(masters, dtype=np.int16)[best]
            )
        return self._heads[side]

    def _worker(self, master: int, kind: int) -> Floats:
        key = (master, kind)
        if key not in self._workers:
            points = self.points
            hops = 2 if points.star else 0 if points.has_pairs else 1
            hop = points.hop(kind if master == ANY_MASTER else master, kind)
            self._workers[key] = points.seconds(kind)[0] + hops * hop[:, None]
        return self._workers[key]

    def _chain(self, master: int, group: Group) -> _Chain:
        key = (master, group)
        if key not in self._chains:
            if not group:
                start = np.full((len(self.points.slots), self.points.blocks + 1), np.inf)
                start[:, 0] = 0.0
                self._chains[key] = _Chain(start, np.zeros(start.shape, dtype=np.int16))
            else:
                shorter = self._chain(master, group[:-1]).seconds
                self._chains[key] = _Chain(*min_plus(shorter, self._worker(master, group[-1])))
        return self._chains[key]

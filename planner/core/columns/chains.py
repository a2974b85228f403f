"""The shortest pass of all groups of few devices at once, serial runtime, every link taken as fast as it can be."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import numpy as np

from planner.core.memory import Floats
from planner.core.partition import min_plus
from planner.core.slots import Group, RolePoints


class Chains:
    """Workers that share n blocks, for all groups of one size: [group, operating point, n]."""

    def __init__(self, points: RolePoints, counts: dict[int, int]) -> None:
        self.points = points
        self.counts = counts
        hops = 2 if points.star else 1
        self.worker = {kind: points.seconds(kind)[0] + hops * self._fastest_hop(kind) for kind in counts}
        self.groups: list[Group] = [()]
        self.seconds = np.full((1, len(points.slots), points.blocks + 1), np.inf)
        self.seconds[..., 0] = 0.0

    def _fastest_hop(self, kind: int) -> Floats:
        """Of every pass at least one hop for each worker crosses one of its links; [operating point, 1]."""
        others = self.counts if self.points.has_pairs else (kind,)
        return np.min([self.points.hop(other, kind) for other in others], axis=0)[:, None]

    def passes(self, groups: Sequence[Group]) -> Generator[float, None, Floats]:
        """The shortest pass of each of these groups, which have one device more: [group, operating point].

        Yields the share done.
        """
        index = {group: k for k, group in enumerate(groups)}
        best = np.full((len(groups), len(self.points.slots)), np.inf)
        for number, master in enumerate(self.counts):
            yield number / len(self.counts)
            free = [k for k, group in enumerate(self.groups) if group.count(master) < self.counts[master]]
            rows = [index[tuple(sorted((*self.groups[k], master)))] for k in free]
            own = self.points.seconds(master)[1][:, 1:]
            reached = (self.seconds[free][..., self.points.blocks - 1 :: -1] + own).min(axis=2)
            best[rows] = np.minimum(best[rows], reached)
        return best

    def longer(self) -> Chains:
        """One more worker, of the last kind of the group or one after it."""
        longer = Chains(self.points, self.counts)
        groups: list[Group] = []
        parts = []
        for kind, count in self.counts.items():
            before = [
                k
                for k, group in enumerate(self.groups)
                if (not group or group[-1] <= kind) and group.count(kind) < count
            ]
            if not before:
                continue
            rows = self.seconds[before].reshape(-1, self.points.blocks + 1)
            joined, _ = min_plus(rows, np.tile(self.worker[kind], (len(before), 1)))
            parts.append(joined.reshape(len(before), -1, self.points.blocks + 1))
            groups += [(*self.groups[k], kind) for k in before]
        longer.groups, longer.seconds = groups, np.concatenate(parts)
        return longer

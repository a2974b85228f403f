"""Operating points of a replica (slots, micro-batch), and the best splits of groups of devices at each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from planner.core.latency import Costs
from planner.core.memory import Floats, Ints
from planner.core.partition import select

Group = tuple[int, ...]  # kinds of the devices, sorted: everything about a replica depends on it alone
PREFILL, DECODE, MIXED = "prefill", "decode", "mixed"


class RolePoints:
    """Stage and hop seconds of one role at several operating points: arrays over [operating point, n]."""

    def __init__(self, costs: Costs, role: str, slots: list[int], micro_batch: list[int]) -> None:
        self.costs = costs
        self.role = role
        self.slots = np.array(slots, dtype=np.int64)
        self.micro_batch = np.array(micro_batch, dtype=np.int64)
        self.workload = costs.problem.workload
        self.star = costs.problem.policy.topology == "star"
        self.has_pairs = bool(costs.problem.pairs)
        self._seconds: dict[int, Floats] = {}
        self._hops: dict[tuple[str, int, int], Floats] = {}
        self._slots_key = tuple(slots)
        self._batch_key = tuple(float(b) for b in micro_batch)
        self._prompt_key = (float(self.workload.input_tokens),) * len(slots)

    @property
    def blocks(self) -> int:
        return self.costs.sums.blocks

    def decode_seconds(self, kind: int) -> Floats:
        """One step of a micro-batch: [worker or master, operating point, n]."""
        return self.costs.table(kind, DECODE, self._slots_key, self._batch_key).seconds

    def prompt_seconds(self, kind: int) -> Floats:
        """One whole prompt: [worker or master, operating point, n]."""
        return self.costs.table(kind, PREFILL, self._slots_key, self._prompt_key).seconds

    def seconds(self, kind: int) -> Floats:
        """What the split minimises; for a mixed replica the stage's seconds for one request, prompt and answer."""
        if kind not in self._seconds:
            if self.role == PREFILL:
                self._seconds[kind] = self.prompt_seconds(kind)
            elif self.role == DECODE:
                self._seconds[kind] = self.decode_seconds(kind)
            else:
                steps = self.workload.output_tokens / self.micro_batch
                weighted = self.decode_seconds(kind) * steps[None, :, None]
                self._seconds[kind] = weighted + self.prompt_seconds(kind)
        return self._seconds[kind]

    def decode_hop(self, a: int, b: int) -> Floats:
        return self._hop(DECODE, a, b, self._batch_key)

    def prompt_hop(self, a: int, b: int) -> Floats:
        return self._hop(PREFILL, a, b, self._prompt_key)

    def _hop(self, phase: str, a: int, b: int, batch: tuple[float, ...]) -> Floats:
        key = (phase, a, b) if self.has_pairs else (phase, 0, 0)
        if key not in self._hops:
            self._hops[key] = self.costs.hop_seconds(a, b, np.array(batch))
        return self._hops[key]

    def hop(self, a: int, b: int) -> Floats:
        """Seconds of one hop between two kinds in the unit of `seconds`: [operating point]."""
        if self.role == PREFILL:
            return self.prompt_hop(a, b)
        if self.role == DECODE:
            return self.decode_hop(a, b)
        return self.decode_hop(a, b) * self.workload.output_tokens / self.micro_batch + self.prompt_hop(a, b)

    def hop_floor(self, group: Group) -> Floats:
        """The slowest hop as a pipeline stage; in a star the master's port carries every worker's share."""
        if len(group) == 1:
            return np.zeros(len(self.slots))
        pairs = {(a, b) for i, a in enumerate(group) for b in group[i + 1 :]} if self.star else set()
        pairs = pairs or set(zip(group, group[1:], strict=False))
        slowest = np.max([self.hop(a, b) for a, b in sorted(pairs)], axis=0)
        if not self.star:
            return np.asarray(slowest)
        latency = self.costs.problem.default_link.latency_seconds
        return np.asarray(np.maximum(slowest, (len(group) - 1) * (slowest - latency)))


@dataclass(frozen=True)
class Splits:
    """The best splits of groups of one size at each operating point: [group, operating point].

    `counts` gives the blocks of chosen ones: groups, operating points -> [row, device].
    """

    pass_seconds: Floats
    bottleneck_seconds: Floats
    master: Ints
    counts: Callable[[Ints, Ints], Ints]


class Gathered:
    """Stage and hop seconds of some groups of one size, side by side for work on all of them at once."""

    def __init__(self, points: RolePoints, groups: Sequence[Group]) -> None:
        kinds, members = np.unique(np.array(groups), return_inverse=True)
        self.points = points
        self.kinds: list[int] = kinds.tolist()
        self.members: Ints = members.reshape(len(groups), -1)  # [group, device] -> number in `kinds`

    @property
    def size(self) -> int:
        return self.members.shape[1]

    def stages(self, seconds: Callable[[int], Floats]) -> Floats:
        """[kind, worker or master, operating point, n]"""
        return np.stack([seconds(kind) for kind in self.kinds])

    def stage_rows(self, seconds: Callable[[int], Floats], rows: Rows) -> Floats:
        """Seconds of each stage of the given splits: [row, device]."""
        is_master = np.arange(self.members.shape[1])[None, :] == rows.master[:, None]
        kinds = self.members[rows.group]
        return np.asarray(
            self.stages(seconds)[kinds, is_master.astype(np.int64), rows.point[:, None], rows.counts]
        )

    def hop_rows(self, hop: Callable[[int, int], Floats], rows: Rows) -> tuple[Floats, Floats]:
        """Seconds of all hops of one pass, and of the slowest: [row]."""
        n_devices = self.size
        if n_devices == 1:
            return np.zeros(len(rows.group)), np.zeros(len(rows.group))
        if not self.points.has_pairs:
            one = hop(self.kinds[0], self.kinds[0])[rows.point]
            return one * ((n_devices - 1) * (2 if self.points.star else 1)), one
        between = np.array([[hop(a, b) for b in self.kinds] for a in self.kinds])  # [kind, kind, point]
        kinds, point = self.members[rows.group], rows.point[:, None]
        if not self.points.star:
            hops = between[kinds[:, :-1], kinds[:, 1:], point]
            return hops.sum(axis=1), hops.max(axis=1)
        masters = np.take_along_axis(kinds, rows.master[:, None], axis=1)
        hops = between[masters, kinds, point]
        hops[np.arange(n_devices)[None, :] == rows.master[:, None]] = 0.0
        return 2 * hops.sum(axis=1), hops.max(axis=1)


@dataclass(frozen=True)
class Rows:
    """Chosen splits: the group, its operating point and its master, [row], and the blocks, [row, device]."""

    group: Ints
    point: Ints
    master: Ints
    counts: Ints


def chosen(splits: Splits, group: Ints, point: Ints) -> Rows:
    return Rows(group, point, splits.master[group, point], splits.counts(group, point))


def overlapped_splits(points: RolePoints, groups: Sequence[Group]) -> Splits:
    """Bottleneck-optimal splits: several micro-batches are under way, so the slowest stage is what counts."""
    gathered = Gathered(points, groups)
    n_groups, n_devices = gathered.members.shape
    n_points = len(points.slots)
    seconds = gathered.stages(points.seconds)[gathered.members]  # [group, device, side, point, n]
    sides = seconds.transpose(2, 0, 3, 1, 4).reshape(2, n_groups * n_points, n_devices, -1)
    floor = np.concatenate([points.hop_floor(group) for group in groups])
    found = select(sides[0], sides[1], floor)
    shape = (n_groups, n_points)
    master = found.master.reshape(shape)
    counts = found.counts.reshape(*shape, n_devices)
    every = np.indices(shape).reshape(2, -1)
    hops, _ = gathered.hop_rows(
        points.hop, Rows(every[0], every[1], master.reshape(-1), counts.reshape(-1, n_devices))
    )
    return Splits(
        (found.pass_seconds + hops).reshape(shape),
        found.bottleneck_seconds.reshape(shape),
        master,
        lambda group, point: counts[group, point],
    )

"""Operating points of a replica (slots, micro-batch), and the best split of a group of devices at each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from planner.core.latency import Costs
from planner.core.memory import Floats, Ints
from planner.core.partition import min_plus, select

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

    def hops_of(self, group: Group, master: int) -> list[tuple[int, int]]:
        """Pairs of kinds that a pass crosses between, in a group whose master stands at position `master`."""
        if self.star:
            return [(group[master], kind) for k, kind in enumerate(group) if k != master for _ in range(2)]
        return list(zip(group, group[1:], strict=False))

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
class Outcome:
    """The best split of a group at each operating point; `split` gives its blocks: rows -> [row, device]."""

    pass_seconds: Floats
    bottleneck_seconds: Floats
    master: Ints
    split: Callable[[Ints], Ints]


class SerialSplits:
    """Minimum-sum splits: one batch walks the stages in turn, so the pass is what counts.

    Chains of workers are shared between all groups that contain them.
    """

    def __init__(self, points: RolePoints) -> None:
        self.points = points
        self._chains: dict[tuple[int, Group], Floats] = {}
        self._workers: dict[tuple[int, int], Floats] = {}

    def best(self, group: Group) -> Outcome | None:
        points = self.points
        n_points, n_blocks = len(points.slots), points.blocks
        passes = np.full((n_points, len(group)), np.inf)
        for position in _first_of_each_kind(group):
            rest = group[:position] + group[position + 1 :]
            own = points.seconds(group[position])[1]
            chain = self._chain(self._master_key(group[position]), rest)
            passes[:, position] = (chain[:, n_blocks - 1 :: -1] + own[:, 1:]).min(axis=1)
            if points.has_pairs and not points.star:
                passes[:, position] += _hop_sum(points, group, position)
        master = passes.argmin(axis=1)
        total = passes[np.arange(n_points), master]
        if not np.isfinite(total).any():
            return None
        # The slowest stage does not matter here: the pass stands in for it.
        return Outcome(total, total, master, lambda rows: self._split(group, master, rows))

    def _split(self, group: Group, master: Ints, rows: Ints) -> Ints:
        counts = np.zeros((len(rows), len(group)), dtype=np.int64)
        for position in sorted(set(master[rows].tolist())):
            here = np.flatnonzero(master[rows] == position)
            counts[here] = self._counts(group, position, rows[here])
        return counts

    def _counts(self, group: Group, position: int, rows: Ints) -> Ints:
        """Walk back through the chains for the given operating points: [row, device]."""
        points, n_blocks = self.points, self.points.blocks
        rest = group[:position] + group[position + 1 :]
        key = self._master_key(group[position])
        own = points.seconds(group[position])[1][rows]
        taken = (self._chain(key, rest)[rows, n_blocks - 1 :: -1] + own[:, 1:]).argmin(axis=1) + 1
        columns = {position: taken}
        left = n_blocks - taken
        n = np.arange(n_blocks + 1)[None, :]
        for k in range(len(rest) - 1, 0, -1):
            before = self._chain(key, rest[:k])[rows]
            stage = self._worker(key, rest[k])[rows]
            index = left[:, None] - n
            reached = before[np.arange(len(rows))[:, None], np.maximum(index, 0)]
            cost = np.where((index >= 0) & (n >= 1), reached + stage, np.inf)
            taken = cost.argmin(axis=1)
            columns[k if k < position else k + 1] = taken
            left = left - taken
        if rest:
            columns[0 if position else 1] = left
        return np.stack([columns[k] for k in range(len(group))], axis=1)

    def _master_key(self, kind: int) -> int:
        return kind if self.points.has_pairs and self.points.star else -1

    def _worker(self, master: int, kind: int) -> Floats:
        key = (master, kind)
        if key not in self._workers:
            points = self.points
            hops = 2 if points.star else 0 if points.has_pairs else 1
            hop = points.hop(kind if master < 0 else master, kind)
            self._workers[key] = points.seconds(kind)[0] + hops * hop[:, None]
        return self._workers[key]

    def _chain(self, master: int, group: Group) -> Floats:
        key = (master, group)
        if key not in self._chains:
            if not group:
                start = np.full((len(self.points.slots), self.points.blocks + 1), np.inf)
                start[:, 0] = 0.0
                self._chains[key] = start
            elif len(group) == 1:
                only = self._worker(master, group[0]).copy()
                only[:, 0] = np.inf
                self._chains[key] = only
            else:
                self._chains[key] = min_plus(self._chain(master, group[:-1]), self._worker(master, group[-1]))
        return self._chains[key]


def _first_of_each_kind(group: Group) -> list[int]:
    return [k for k, kind in enumerate(group) if k == 0 or group[k - 1] != kind]


def _hop_sum(points: RolePoints, group: Group, master: int) -> Floats:
    total = np.zeros(len(points.slots))
    for a, b in points.hops_of(group, master):
        total = total + points.hop(a, b)
    return total


def overlapped_best(points: RolePoints, group: Group) -> Outcome | None:
    """Bottleneck-optimal splits: several micro-batches are under way, so the slowest stage is what counts."""
    if len(group) > points.blocks:
        return None
    seconds = np.stack([points.seconds(kind) for kind in group], axis=2)  # [side, point, device, n]
    found = select(seconds[0], seconds[1], points.hop_floor(group))
    if not np.isfinite(found.bottleneck_seconds).any():
        return None
    passes = found.pass_seconds.copy()
    for position in sorted(set(found.master.tolist())):
        rows = found.master == position
        passes[rows] += _hop_sum(points, group, position)[rows]
    return Outcome(passes, found.bottleneck_seconds, found.master, lambda rows: found.counts[rows])

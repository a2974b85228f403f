"""Every way a group of devices can serve as a replica, worked out once for each multiset of kinds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np

from planner.core.figures import Figures, figures, step_seconds
from planner.core.latency import Costs
from planner.core.memory import Floats, Ints
from planner.core.problem import Problem
from planner.core.serial_split import SerialSplits
from planner.core.slots import (
    DECODE,
    MIXED,
    PREFILL,
    Gathered,
    Group,
    RolePoints,
    Rows,
    Splits,
    chosen,
    overlapped_splits,
)

NUMBERS_AT_ONCE = 2_000_000  # of an array over groups, devices, operating points and blocks


@dataclass(frozen=True)
class Option:
    """One way to run a group: the split, and what follows from it."""

    group: Group
    role: str
    slots: int
    micro_batch: int
    master: int
    counts: tuple[int, ...]
    bottleneck_seconds: float
    pass_seconds: float
    tpot_seconds: float
    prefill_seconds: float
    handover_seconds: float
    requests_per_second: float
    bare_requests_per_second: float  # as the paper counts it: without the hand-over


@dataclass(frozen=True)
class OptionTable:
    """Options of many groups, the fields of `Option` as columns; those of one group stand together."""

    slots: Ints
    micro_batch: Ints
    master: Ints
    counts: Ints  # [option, device]
    bottleneck_seconds: Floats
    pass_seconds: Floats
    tpot_seconds: Floats
    prefill_seconds: Floats
    handover_seconds: Floats
    requests_per_second: Floats
    bare_requests_per_second: Floats

    def options(self, role: str, group: Group, rows: slice) -> tuple[Option, ...]:
        columns = {field.name: getattr(self, field.name)[rows].tolist() for field in fields(self)}
        columns["counts"] = [tuple(blocks) for blocks in columns["counts"]]
        found = zip(*columns.values(), strict=True)
        return tuple(Option(group, role, **dict(zip(columns, row, strict=True))) for row in found)


class Place(NamedTuple):
    """Where the options of a group stand in a table."""

    table: OptionTable
    rows: slice


class Catalogue:
    """Options of every group, cached by kinds; `evaluations` counts the groups worked out."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.costs = Costs(problem)
        self.evaluations = 0
        self.serial = problem.policy.runtime == "serial"
        self._places: dict[tuple[str, Group], Place | None] = {}
        self._options: dict[tuple[str, Group], tuple[Option, ...]] = {}
        self._points: dict[tuple[str, int], RolePoints] = {}
        self._splits: dict[str, SerialSplits] = {}

    def group_of(self, devices: tuple[int, ...]) -> Group:
        return tuple(sorted(self.problem.kind_of[device] for device in devices))

    def options(self, role: str, group: Group) -> tuple[Option, ...]:
        """Options on the Pareto list of rate and slots, most slots first; empty when the group cannot do it."""
        key = (role, group)
        if key not in self._options:
            place = self.place(role, group)
            self._options[key] = place.table.options(role, group, place.rows) if place else ()
        return self._options[key]

    def place(self, role: str, group: Group) -> Place | None:
        """The group's options as columns, without the cost of an `Option` for each."""
        key = (role, group)
        if key not in self._places:
            self.work_out(role, [group])
        return self._places[key]

    def prefill(self, group: Group) -> Option | None:
        found = self.options(PREFILL, group)
        return found[0] if found else None

    def work_out(self, role: str, groups: Iterable[Group]) -> None:
        """Options of these groups, all at once: several times faster than one after the other."""
        by_size: dict[int, list[Group]] = {}
        for group in dict.fromkeys(groups):
            if (role, group) not in self._places:
                by_size.setdefault(len(group), []).append(group)
        for size, fresh in by_size.items():
            points = self.points(role, size)
            width = max(1, len(points.slots)) * size * (points.blocks + 1)
            at_once = max(1, NUMBERS_AT_ONCE // (width if self.serial else width * size))
            for start in range(0, len(fresh), at_once):
                self._work_out(role, fresh[start : start + at_once])

    def points(self, role: str, n_devices: int) -> RolePoints:
        """The operating points scanned for a replica of that many devices."""
        key = (role, 0 if self.serial else n_devices)
        if key not in self._points:
            if role == PREFILL:
                slots, batch = [1], [1]
            elif self.serial:
                slots = list(range(1, self.problem.policy.max_slots + 1))
                batch = slots
            else:
                batch = list(range(1, self.problem.policy.max_slots // n_devices + 1))
                slots = [b * n_devices for b in batch]
            self._points[key] = RolePoints(self.costs, role, slots, batch)
        return self._points[key]

    def splits(self, role: str, groups: Sequence[Group]) -> Splits | None:
        """Best splits of groups of one size; None when they have more devices than blocks or slots."""
        points = self.points(role, len(groups[0]))
        if not len(points.slots) or len(groups[0]) > points.blocks:
            return None
        if not self.serial:
            return overlapped_splits(points, groups)
        if role not in self._splits:
            self._splits[role] = SerialSplits(points)
        return self._splits[role].best(groups)

    def step_seconds(self, group: Group) -> Floats:
        """Seconds between two tokens of a request, decoding alone: [operating point], empty where there is none."""
        splits = self.splits(DECODE, [group])
        if splits is None:
            return np.zeros(0)
        return step_seconds(splits.pass_seconds[0], splits.bottleneck_seconds[0], len(group), self.serial)

    def _work_out(self, role: str, groups: list[Group]) -> None:
        self.evaluations += len(groups)
        self._places.update(((role, group), None) for group in groups)
        splits = self.splits(role, groups)
        if splits is None:
            return
        points = self.points(role, len(groups[0]))
        gathered = Gathered(points, groups)
        able = figures(self.problem, points, splits, gathered)
        floor = self.problem.policy.min_tokens_per_second
        keep = np.isfinite(splits.pass_seconds) & (able.tpot * floor <= 1 + 1e-12)
        group, point = _pareto(np.where(keep, able.rate, -1.0))
        table = self._table(points, gathered, chosen(splits, group, point), able)
        borders = np.searchsorted(group, np.arange(len(groups) + 1)).tolist()
        for number, one in enumerate(groups):
            start, end = borders[number : number + 2]
            if end > start:
                self._places[role, one] = Place(table, slice(start, end))

    def option_of(self, role: str, slots: int, group: Group, counts: Sequence[int], master: int) -> Option:
        """The option of one split that somebody else made: blocks by device, in the order of the group."""
        n_devices = len(group)
        batch = 1 if role == PREFILL else slots if self.serial else -(-slots // n_devices)
        points = RolePoints(self.costs, role, [slots], [batch])
        gathered = Gathered(points, [group])
        blocks = np.array([[counts]], dtype=np.int64)
        rows = Rows(np.array([0]), np.array([0]), np.array([master]), blocks[0])
        stages = gathered.stage_rows(points.seconds, rows)
        hops, _ = gathered.hop_rows(points.hop, rows)
        slowest = np.maximum(stages.max(axis=1), points.hop_floor(group))
        splits = Splits(
            (stages.sum(axis=1) + hops)[None],
            slowest[None],
            rows.master[None],
            lambda group, point: blocks[group, point],
        )
        table = self._table(points, gathered, rows, figures(self.problem, points, splits, gathered))
        return table.options(role, group, slice(0, 1))[0]

    def _table(self, points: RolePoints, gathered: Gathered, rows: Rows, able: Figures) -> OptionTable:
        at = (rows.group, rows.point)
        bare = able.rate[at]
        handover = np.zeros(len(bare)) if points.role == MIXED else self._handover_seconds(gathered, rows)
        seconds = points.prompt_seconds if points.role == PREFILL else points.decode_seconds
        with np.errstate(divide="ignore"):
            rate = np.minimum(bare, 1.0 / handover)
        return OptionTable(
            slots=points.slots[rows.point],
            micro_batch=points.micro_batch[rows.point],
            master=rows.master,
            counts=rows.counts,
            bottleneck_seconds=gathered.stage_rows(seconds, rows).max(axis=1),
            pass_seconds=able.pass_seconds[at],
            tpot_seconds=able.tpot[at],
            prefill_seconds=able.prompt[at],
            handover_seconds=handover,
            requests_per_second=rate,
            bare_requests_per_second=bare,
        )

    def _handover_seconds(self, gathered: Gathered, rows: Rows) -> Floats:
        """Seconds that a request's KV cache keeps the master's port busy, with gathering from its workers."""
        problem = self.problem
        if not problem.policy.handover:
            return np.zeros(len(rows.group))
        at_master = np.take_along_axis(rows.counts, rows.master[:, None], axis=1)[:, 0]
        share = 1.0 - at_master / problem.model.blocks
        names = [self.costs.kinds[kind].name for kind in gathered.kinds]
        ports = np.array([problem.nic_bytes_per_second(name) for name in names])
        port = ports[gathered.members[rows.group, rows.master]]
        size = problem.model.handoff_bytes(problem.workload.input_tokens)
        return np.asarray(size / port * (1.0 + share))


def _pareto(rates: Floats) -> tuple[Ints, Ints]:
    """Operating points of each group that no other one beats in both slots and rate, most slots first.

    Slots rise with the operating point; a rate that is not positive is none.
    """
    falling = rates[:, ::-1]
    before = np.maximum.accumulate(np.maximum(falling, 0.0), axis=1)
    before = np.pad(before[:, :-1], ((0, 0), (1, 0)))
    group, behind = np.nonzero(falling > before * (1 + 1e-12))
    return group, rates.shape[1] - 1 - behind

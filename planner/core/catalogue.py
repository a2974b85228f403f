"""Every way a group of devices can serve as a replica, worked out once for each multiset of kinds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.core.latency import PREFILL_PIECE_TOKENS, Costs
from planner.core.memory import Floats, Ints
from planner.core.problem import Problem
from planner.core.slots import (
    DECODE,
    MIXED,
    PREFILL,
    Group,
    Outcome,
    RolePoints,
    SerialSplits,
    overlapped_best,
)

SHORT_ANSWER_SIGMAS = 2.5  # a mixed replica must hold the floor for answers this much shorter than the mean


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


class Catalogue:
    """Options of every group, cached by kinds; `evaluations` counts the groups worked out."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.costs = Costs(problem)
        self.evaluations = 0
        self.serial = problem.policy.runtime == "serial"
        self._options: dict[tuple[str, Group], tuple[Option, ...]] = {}
        self._points: dict[tuple[str, int], RolePoints] = {}
        self._splits: dict[str, SerialSplits] = {}

    def group_of(self, devices: tuple[int, ...]) -> Group:
        return tuple(sorted(self.problem.kind_of[device] for device in devices))

    def options(self, role: str, group: Group) -> tuple[Option, ...]:
        """Options on the Pareto list of rate and slots, most slots first; empty when the group cannot do it."""
        key = (role, group)
        if key not in self._options:
            self.evaluations += 1
            self._options[key] = self._work_out(role, group)
        return self._options[key]

    def prefill(self, group: Group) -> Option | None:
        found = self.options(PREFILL, group)
        return found[0] if found else None

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

    def outcome(self, role: str, group: Group) -> Outcome | None:
        points = self.points(role, len(group))
        if not len(points.slots) or len(group) > points.blocks:
            return None
        if not self.serial:
            return overlapped_best(points, group)
        if role not in self._splits:
            self._splits[role] = SerialSplits(points)
        return self._splits[role].best(group)

    def _work_out(self, role: str, group: Group) -> tuple[Option, ...]:
        outcome = self.outcome(role, group)
        if outcome is None:
            return ()
        points = self.points(role, len(group))
        if role == PREFILL:
            seconds = outcome.pass_seconds if self.serial else outcome.bottleneck_seconds
            figures = _Figures(1.0 / seconds, np.zeros(1), outcome.pass_seconds, outcome.pass_seconds)
        elif role == DECODE:
            tpot = self.step_seconds(outcome, len(group))
            rates = points.slots / (self.problem.workload.output_tokens * tpot)
            figures = _Figures(rates, tpot, np.zeros(len(tpot)), outcome.pass_seconds)
        else:
            figures = self._mixed(outcome, points, group)
        floor = self.problem.policy.min_tokens_per_second
        keep = np.isfinite(outcome.pass_seconds) & (figures.tpot * floor <= 1 + 1e-12)
        rows = _pareto_rows(points.slots, np.where(keep, figures.rate, -1.0))
        counts = outcome.split(rows)
        return tuple(
            self._option(points, group, (int(outcome.master[row]), tuple(blocks)), row, figures)
            for row, blocks in zip(rows.tolist(), counts.tolist(), strict=True)
        )

    def step_seconds(self, outcome: Outcome, n_devices: int) -> Floats:
        """Seconds between two tokens of one request: the pass, or the pipeline's round when stages overlap."""
        if self.serial:
            return outcome.pass_seconds
        return np.maximum(outcome.pass_seconds, n_devices * outcome.bottleneck_seconds)

    def _option(
        self,
        points: RolePoints,
        group: Group,
        split: tuple[int, tuple[int, ...]],
        row: int,
        figures: _Figures,
    ) -> Option:
        master, counts = split
        handover = 0.0 if points.role == MIXED else self.handover_seconds(group, master, counts)
        bare = float(figures.rate[row])
        seconds = points.prompt_seconds if points.role == PREFILL else points.decode_seconds
        stages = [seconds(kind)[int(k == master), row, counts[k]] for k, kind in enumerate(group)]
        return Option(
            group=group,
            role=points.role,
            slots=int(points.slots[row]),
            micro_batch=int(points.micro_batch[row]),
            master=master,
            counts=counts,
            bottleneck_seconds=float(max(stages)),
            pass_seconds=float(figures.pass_seconds[row]),
            tpot_seconds=float(figures.tpot[row]),
            prefill_seconds=float(figures.prompt[row]),
            handover_seconds=handover,
            requests_per_second=min(bare, 1.0 / handover) if handover > 0 else bare,
            bare_requests_per_second=bare,
        )

    def handover_seconds(self, group: Group, master: int, counts: tuple[int, ...]) -> float:
        """Seconds that one request's KV cache keeps the master's port busy, with gathering from its workers."""
        problem = self.problem
        if not problem.policy.handover:
            return 0.0
        share = 1.0 - counts[master] / problem.model.blocks
        port = problem.nic_bytes_per_second(self.costs.kinds[group[master]].name)
        return problem.model.handoff_bytes(problem.workload.input_tokens) / port * (1.0 + share)

    def _mixed(self, outcome: Outcome, points: RolePoints, group: Group) -> _Figures:
        """A replica that does both phases: its tokens come at the worst pace that prompts of others leave."""
        rows = np.flatnonzero(np.isfinite(outcome.pass_seconds))
        decode, prompt = _phases(outcome, points, group, rows)
        slots, tokens = points.slots[rows], self.problem.workload.output_tokens
        step = decode.whole if self.serial else np.maximum(decode.whole, len(group) * decode.slowest)
        stall = prompt.whole if self.serial else prompt.slowest
        busy = (outcome.pass_seconds if self.serial else outcome.bottleneck_seconds)[rows]
        lived = (prompt.whole + tokens * step + (slots - 1) * stall) / slots
        piece = stall * min(1.0, PREFILL_PIECE_TOKENS / self.problem.workload.input_tokens)
        per_token = np.minimum((slots - 1) * stall / shortest_answer(self.problem), piece)
        found = _Figures(*(np.full(len(points.slots), np.inf) for _ in range(4)))
        found.rate[rows] = 1.0 / np.maximum(busy, lived)
        found.tpot[rows] = step + per_token
        found.prompt[rows] = prompt.whole
        found.pass_seconds[rows] = decode.whole
        return found


@dataclass(frozen=True)
class _Figures:
    """What follows from the best split at each operating point."""

    rate: Floats
    tpot: Floats
    prompt: Floats
    pass_seconds: Floats


@dataclass(frozen=True)
class _Phase:
    """Seconds of a whole pass and of its slowest part, hops among them."""

    whole: Floats
    slowest: Floats


def shortest_answer(problem: Problem) -> float:
    """Tokens of an unusually short answer under the workload's spread (lognormal)."""
    workload = problem.workload
    sigma = float(np.sqrt(np.log1p(workload.output_cv**2)))
    return max(1.0, workload.output_tokens * float(np.exp(-SHORT_ANSWER_SIGMAS * sigma - sigma**2 / 2)))


def _phases(outcome: Outcome, points: RolePoints, group: Group, rows: Ints) -> tuple[_Phase, _Phase]:
    """The same split seen as decode steps and as prompts."""
    counts, master = outcome.split(rows), outcome.master[rows]
    found = []
    for seconds, hop in (
        (points.decode_seconds, points.decode_hop),
        (points.prompt_seconds, points.prompt_hop),
    ):
        whole, slowest = np.zeros(len(rows)), np.zeros(len(rows))
        for k, kind in enumerate(group):
            stage = seconds(kind)[(master == k).astype(np.int64), rows, counts[:, k]]
            whole, slowest = whole + stage, np.maximum(slowest, stage)
        for position in sorted(set(master.tolist())) if len(group) > 1 else ():
            here = master == position
            for a, b in points.hops_of(group, position):
                whole = whole + np.where(here, hop(a, b)[rows], 0.0)
                slowest = np.where(here, np.maximum(slowest, hop(a, b)[rows]), slowest)
        found.append(_Phase(whole, slowest))
    return found[0], found[1]


def _pareto_rows(slots: Ints, rates: Floats) -> Ints:
    """Operating points that no other one beats in both slots and rate, most slots first."""
    falling = np.lexsort((-rates, -slots))
    before = np.maximum.accumulate(np.concatenate([[0.0], rates[falling][:-1]]))
    return np.asarray(falling[rates[falling] > before * (1 + 1e-12)])

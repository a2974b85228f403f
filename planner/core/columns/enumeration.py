"""Every replica of few devices, by what it can do at best: columns for a bound.

No figure is worse than that of the real replica, so a bound over them is a bound for every real plan with replicas of
so many devices. Prompts, and everything of the overlapped runtime, are the real figures; token steps of the serial
runtime take the fastest link of each device and the fastest port for granted, and mixed replicas the best split for
the prompt together with the best split for the step where the floor is checked.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import combinations_with_replacement
from math import comb

import numpy as np

from planner.core.catalogue import Catalogue, Option
from planner.core.columns.chains import Chains
from planner.core.figures import stall_seconds
from planner.core.memory import Floats
from planner.core.slots import DECODE, MIXED, PREFILL, Group

MOST_GROUPS = 50_000
GROUPS_BETWEEN_STEPS = 2000
LONG_SECONDS = 1e30
OFFERED = 60  # replicas of each pricing


def enumerable_size(catalogue: Catalogue) -> int:
    """Devices per replica up to which all groups are looked at."""
    kinds = len(catalogue.costs.kinds)
    most = min(len(catalogue.problem.devices), catalogue.costs.sums.blocks)
    size, total = 0, 0
    while size < most and total + comb(kinds + size, size + 1) <= MOST_GROUPS:
        size += 1
        total += comb(kinds + size - 1, size)
    return size


class Enumeration:
    """All groups of up to `size` devices in one role: rates and slots are [group, operating point]."""

    def __init__(self, catalogue: Catalogue, role: str, size: int) -> None:
        self.catalogue = catalogue
        self.role = role
        self.kinds = sorted(catalogue.costs.kinds)
        self.counts = {kind: catalogue.problem.kind_of.count(kind) for kind in self.kinds}
        self.by_size = [
            [
                group
                for group in combinations_with_replacement(self.kinds, k)
                if all(group.count(kind) <= self.counts[kind] for kind in set(group))
            ]
            for k in range(1, size + 1)
        ]
        self.groups = [group for groups in self.by_size for group in groups]
        self.members = np.array([[group.count(kind) for kind in self.kinds] for group in self.groups])
        n_points = 1 if role == PREFILL else catalogue.problem.policy.max_slots
        self.rate = np.zeros((len(self.groups), n_points))  # 0 where the replica cannot serve
        self.slots = np.zeros((len(self.groups), n_points), dtype=np.int64)

    def work_out(self) -> Iterator[float]:
        """Yield the share done."""
        if self.catalogue.serial and self.role != PREFILL:
            yield from self._at_best()
        else:
            yield from self._as_they_are()
        able = np.flatnonzero((self.rate > 0).any(axis=1))
        self.groups = [self.groups[k] for k in able]
        self.members, self.rate, self.slots = self.members[able], self.rate[able], self.slots[able]

    def most_slots(self) -> float:
        """More slots than any plan of these replicas has: every device with its best share."""
        share = np.where(self.rate > 0, self.slots, 0).max(axis=1, initial=0) / self.members.sum(axis=1)
        each = np.where(self.members > 0, share[:, None], 0.0).max(axis=0, initial=0.0)
        kinds = self.catalogue.problem.kind_of
        return float(sum(each[self.kinds.index(kind)] for kind in kinds))

    def best(self, prices: dict[int, float], slot_weight: float, theta: float) -> tuple[float, list[Option]]:
        """The largest value less prices (of decode value, or theta for each prompt rate), and replicas near it."""
        worth = self._worth(slot_weight, theta)
        gain = worth.max(axis=1) - self._paid(prices)
        order = np.argsort(-gain, kind="stable")[:OFFERED]
        offered = [self._option(int(k), int(worth[k].argmax())) for k in order if gain[k] > 0]
        return float(gain.max(initial=-np.inf)), offered

    def nearest(self, prices: dict[int, float], slot_weight: float, theta: float, count: int) -> list[Group]:
        """The replicas that come nearest to being worth their price."""
        gain = self._worth(slot_weight, theta).max(axis=1) - self._paid(prices)
        return [self.groups[int(k)] for k in np.argsort(-gain, kind="stable")[:count]]

    def _worth(self, slot_weight: float, theta: float) -> Floats:
        most = self.catalogue.problem.workload.requests
        constant = 0.0 if self.role == PREFILL else slot_weight * np.minimum(self.slots, most)
        return np.where(self.rate > 0, constant + theta * self.rate, -np.inf)

    def _paid(self, prices: dict[int, float]) -> Floats:
        return np.asarray(self.members @ np.array([prices[kind] for kind in self.kinds]))

    def _option(self, group: int, point: int) -> Option:
        """What the bound counts with; a real replica of these devices may do less."""
        rate, slots = float(self.rate[group, point]), int(self.slots[group, point])
        blocks = (0,) * len(self.groups[group])
        return Option(
            self.groups[group], self.role, slots, slots, 0, blocks, 0.0, 0.0, 0.0, 0.0, 0.0, rate, rate
        )

    def _as_they_are(self) -> Iterator[float]:
        catalogue = self.catalogue
        for start in range(0, len(self.groups), GROUPS_BETWEEN_STEPS):
            some = self.groups[start : start + GROUPS_BETWEEN_STEPS]
            catalogue.work_out(self.role, some)
            for number, group in enumerate(some, start):
                place = catalogue.place(self.role, group)
                if place is not None:
                    here = place.table.slots[place.rows]
                    at = np.zeros(1, dtype=np.int64) if self.role == PREFILL else here - 1
                    self.rate[number, at] = place.table.requests_per_second[place.rows]
                    self.slots[number, at] = here
            yield (start + len(some)) / len(self.groups)

    def _at_best(self) -> Iterator[float]:
        problem = self.catalogue.problem
        floor, slots = problem.policy.min_tokens_per_second, self.catalogue.points(DECODE, 1).slots
        self.slots[:] = slots
        seconds = yield from self._shortest(DECODE)
        if self.role == DECODE:
            fast = seconds * floor <= 1 + 1e-12
            rate = slots / (problem.workload.output_tokens * seconds)
            ports = max(problem.nic_bytes_per_second(device.name) for device in problem.devices)
            size = problem.model.handoff_bytes(problem.workload.input_tokens)
            if problem.policy.handover and size:
                rate = np.minimum(rate, ports / size)
        else:
            prompt = yield from self._shortest(PREFILL)
            prompt[np.isinf(prompt)] = LONG_SECONDS  # no number of other slots may make a NaN of it
            pace = seconds + stall_seconds(problem, slots, prompt)
            fast = pace * floor <= 1 + 1e-12
            rate = 1.0 / (yield from self._shortest(MIXED))
        self.rate = np.where(fast, rate, 0.0)

    def _shortest(self, role: str) -> Generator[float, None, Floats]:
        """The shortest pass of every group: [group, operating point]."""
        chains = Chains(self.catalogue.points(role, 1), self.counts)
        found = []
        for number, groups in enumerate(self.by_size):
            if number:
                chains = chains.longer()
            found.append((yield from chains.passes(groups)))
        return np.concatenate(found)

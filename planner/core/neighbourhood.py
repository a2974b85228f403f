"""Local search from a plan: devices move, swap, leave and join; replicas merge, split and change their role."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from planner.core.assembly import Choice
from planner.core.catalogue import Catalogue, Option
from planner.core.objective import Objective
from planner.core.slots import DECODE, MIXED, PREFILL

TRIES_BETWEEN_STEPS = 200
BETTER = 1e-9


@dataclass(frozen=True)
class Team:
    """Devices that form a replica of a given role."""

    devices: tuple[int, ...]
    role: str

    def without(self, device: int) -> Team:
        return Team(tuple(one for one in self.devices if one != device), self.role)

    def plus(self, *devices: int) -> Team:
        return Team(tuple(sorted((*self.devices, *devices))), self.role)


@dataclass(frozen=True)
class Change:
    """Teams that leave the plan, and those that come in their place."""

    out: tuple[Team, ...]
    come: tuple[Team, ...]


@dataclass(frozen=True)
class Improvement:
    """The best plan so far and how many neighbours were tried."""

    seconds: float
    choices: tuple[Choice, ...]
    tries: int


def improve(
    catalogue: Catalogue,
    objective: Objective,
    start: Sequence[Choice],
    rng: np.random.Generator,
    most_tries: int,
) -> Iterator[Improvement]:
    """Yield the best so far now and then until no neighbour is better, or the tries are used up."""
    climb = _Climb(catalogue, objective, start)
    improved = True
    while improved and climb.tries < most_tries:
        improved = False
        for change in climb.changes(rng):
            improved |= climb.attempt(change)
            if climb.tries % TRIES_BETWEEN_STEPS == 0:
                yield climb.reached()
            if climb.tries >= most_tries:
                break
    yield climb.reached()


class _Climb:
    """A plan that takes every change for the better."""

    def __init__(self, catalogue: Catalogue, objective: Objective, start: Sequence[Choice]) -> None:
        self.catalogue = catalogue
        self.objective = objective
        self.is_mixed = start[0][1].role == MIXED
        self.roles = (MIXED,) if self.is_mixed else (PREFILL, DECODE)
        self.teams = {
            Team(devices, option.role): None for devices, option in start
        }  # a set that keeps its order
        self.tries = 0
        self.theta = objective.first_thetas[0]
        self.value = (np.inf, np.inf)
        self._settle()

    def reached(self) -> Improvement:
        pairs = [(team.devices, self._option(team)) for team in self.teams]
        found = [(devices, option) for devices, option in pairs if option is not None]
        return Improvement(self.value[0], tuple(sorted(found, key=lambda choice: choice[0])), self.tries)

    def attempt(self, change: Change) -> bool:
        """Take the change if the plan it leads to is better."""
        self.tries += 1
        sums = self.sums - self._sum(change.out) + self._sum(change.come)
        value = self._value(sums)
        if not self._is_better(value):
            return False
        for team in change.out:
            del self.teams[team]
        for team in change.come:
            if team.devices:
                self.teams[team] = None
        self._settle()
        return True

    def changes(self, rng: np.random.Generator) -> Iterator[Change]:
        """The neighbours of the plan as it is whenever the next one is asked for."""
        devices = [int(device) for device in rng.permutation(len(self.catalogue.problem.devices))]
        for device in devices:
            yield from self._moves(device)
        for team in list(self.teams):
            if team in self.teams and not self.is_mixed:
                other = DECODE if team.role == PREFILL else PREFILL
                yield Change((team,), (Team(team.devices, other),))
        for position, device in enumerate(devices):
            for other_device in devices[position + 1 :]:
                yield from self._swap(device, other_device)
        yield from self._merges()

    def _home(self, device: int) -> Team | None:
        return next((team for team in self.teams if device in team.devices), None)

    def _moves(self, device: int) -> Iterator[Change]:
        """To another replica, to one of its own, or out of the plan."""
        for target in [*self.teams, *(Team((), role) for role in self.roles)]:
            source = self._home(device)
            if target == source or (target.devices and target not in self.teams):
                continue
            out = tuple(team for team in (source, target) if team is not None and team.devices)
            left = (source.without(device),) if source else ()
            yield Change(out, (*left, target.plus(device)))
        source = self._home(device)
        if source is not None and self.catalogue.problem.policy.allow_idle:
            yield Change((source,), (source.without(device),))

    def _swap(self, one: int, other: int) -> Iterator[Change]:
        if self.catalogue.problem.kind_of[one] == self.catalogue.problem.kind_of[other]:
            return
        first, second = self._home(one), self._home(other)
        if first == second:
            return
        out = tuple(team for team in (first, second) if team is not None)
        come = []
        if first is not None:
            come.append(first.without(one).plus(other))
        if second is not None:
            come.append(second.without(other).plus(one))
        yield Change(out, tuple(come))

    def _merges(self) -> Iterator[Change]:
        teams = list(self.teams)
        for position, first in enumerate(teams):
            for second in teams[position + 1 :]:
                if first in self.teams and second in self.teams:
                    yield Change((first, second), (first.plus(*second.devices),))

    def _option(self, team: Team) -> Option | None:
        if not team.devices:
            return None
        return self.objective.pick(
            self.catalogue.options(team.role, self.catalogue.group_of(team.devices)), self.theta
        )

    def _sum(self, teams: Sequence[Team]) -> np.ndarray:
        """Prefill rate, decode rate and slots of these teams; one that cannot serve adds nothing."""
        total = np.zeros(3)
        for team in teams:
            option = self._option(team)
            if option is not None:
                rate = self.objective.rate(option)
                total += (rate, 0.0, 0.0) if team.role == PREFILL else (0.0, rate, option.slots)
        return total

    def _value(self, sums: np.ndarray) -> tuple[float, float]:
        prefill = np.inf if self.is_mixed else float(sums[0])
        decode = float(sums[1])
        if prefill <= BETTER or decode <= BETTER:
            return np.inf, np.inf
        load = float(self.objective.utilisation(prefill, decode))
        return float(self.objective.seconds(prefill, decode, sums[2])), load

    def _is_better(self, value: tuple[float, float]) -> bool:
        if value[0] < self.value[0] - BETTER:
            return True
        return value[0] <= self.value[0] + BETTER and value[1] < self.value[1] - BETTER

    def _settle(self) -> None:
        """Sums of the plan, with the slots that suit the wait reached."""
        self.sums = self._sum(list(self.teams))
        self.value = self._value(self.sums)
        if self.objective.is_wait and 0 < self.value[0] < np.inf:
            self.theta = self.objective.theta(self.value[0])
            self.sums = self._sum(list(self.teams))
            self.value = min(self.value, self._value(self.sums))

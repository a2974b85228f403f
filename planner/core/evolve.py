"""The paper's genetic algorithm over device groupings, as a generator of generations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.core.assembly import Choice, build_plan, closed_form_proof
from planner.core.catalogue import Catalogue
from planner.core.genome import Genome, crossover, mutate, random_genome
from planner.core.objective import Objective
from planner.core.plan import Plan
from planner.core.problem import Problem
from planner.core.roles import Assignment, assign, assign_mixed
from planner.core.slots import DECODE, MIXED, PREFILL


@dataclass(frozen=True)
class EvolveSettings:
    population: int = 40
    generations: int = 60
    elites: int = 10
    objective: str = "wait"
    allow_mixed: bool = True


@dataclass(frozen=True)
class Generation:
    """What one generation reached; `state` continues the search from here."""

    number: int
    best_seconds: float | None
    mean_seconds: float | None
    evaluations: int
    best_plan: Plan | None
    best_choices: tuple[Choice, ...]
    state: EvolveState


@dataclass(frozen=True)
class EvolveState:
    """Everything the next generation depends on, as plain values for a checkpoint."""

    number: int
    elites: tuple[Genome, ...]
    population: tuple[Genome, ...]
    rng_state: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        def genomes(many: tuple[Genome, ...]) -> list[list[list[int]]]:
            return [[list(one.order), list(one.sizes)] for one in many]

        return {
            "number": self.number,
            "elites": genomes(self.elites),
            "population": genomes(self.population),
            "rng_state": self.rng_state,
        }

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> EvolveState:
        def genomes(many: list[list[list[int]]]) -> tuple[Genome, ...]:
            return tuple(Genome(tuple(order), tuple(sizes)) for order, sizes in many)

        return cls(
            document["number"],
            genomes(document["elites"]),
            genomes(document["population"]),
            document["rng_state"],
        )


class Evaluator:
    """Values of groupings, cached: the same replicas in another order are the same individual."""

    def __init__(
        self, catalogue: Catalogue, objective: Objective, allow_mixed: bool, allow_idle: bool
    ) -> None:
        self.catalogue = catalogue
        self.objective = objective
        self.allow_mixed = allow_mixed
        self.allow_idle = allow_idle
        self._known: dict[tuple[tuple[int, ...], ...], Assignment | None] = {}

    def __call__(self, genome: Genome) -> Assignment | None:
        groups = [self.catalogue.group_of(devices) for devices in genome.groups]
        key = tuple(sorted(groups))
        if key not in self._known:
            self._known[key] = self._evaluate(key)
        return self._known[key]

    def prepare(self, genomes: tuple[Genome, ...]) -> None:
        """Work out the replicas of many individuals at once, which is quicker than one after the other."""
        groups = {self.catalogue.group_of(devices) for genome in genomes for devices in genome.groups}
        for role in (PREFILL, DECODE, MIXED) if self.allow_mixed else (PREFILL, DECODE):
            self.catalogue.work_out(role, sorted(groups))

    def _evaluate(self, groups: tuple[tuple[int, ...], ...]) -> Assignment | None:
        found = [assign(self.catalogue, groups, self.objective)]
        if self.allow_mixed:
            found.append(assign_mixed(self.catalogue, groups, self.objective))
        if not self.allow_idle:
            found = [one for one in found if one is None or None not in one.options]
        return min((one for one in found if one is not None), key=lambda one: one.score, default=None)

    def choices(self, genome: Genome) -> tuple[Choice, ...]:
        """The replicas of an individual with the options that its value rests on."""
        by_kinds = sorted(genome.groups, key=lambda devices: (self.catalogue.group_of(devices), devices))
        found = self(genome)
        if found is None:
            return ()
        pairs = zip(by_kinds, found.options, strict=True)
        return tuple((devices, option) for devices, option in pairs if option is not None)


def evolve(
    problem: Problem,
    settings: EvolveSettings,
    rng: np.random.Generator,
    *,
    catalogue: Catalogue | None = None,
    state: EvolveState | None = None,
) -> Iterator[Generation]:
    """Yield every generation, or those after `state`, whose random numbers then go on where they stopped."""
    catalogue = catalogue or Catalogue(problem)
    value = Evaluator(
        catalogue, Objective(settings.objective, problem), settings.allow_mixed, problem.policy.allow_idle
    )
    if state is None:
        population = _first_population(len(problem.devices), settings, rng)
        state = EvolveState(0, (), population, {})
    else:
        rng.bit_generator.state = state.rng_state
    plan: Plan | None = None
    shown: Genome | None = None
    for number in range(state.number + 1, settings.generations + 1):
        value.prepare(state.elites + state.population)
        elites = _best_of(state.elites + state.population, value, settings.elites)
        children = _children(elites, state.population, settings, rng)
        best = value(elites[0])
        if best is not None and elites[0] != shown:
            shown = elites[0]
            proof = closed_form_proof("genetic algorithm", catalogue.evaluations)
            plan = build_plan(catalogue, value.choices(shown), proof, problem.policy.seed)
        evaluated = [found.seconds for found in map(value, state.population) if found is not None]
        state = EvolveState(number, elites, children, dict(rng.bit_generator.state))
        yield Generation(
            number=number,
            best_seconds=best.seconds if best else None,
            mean_seconds=float(np.mean(evaluated)) if evaluated else None,
            evaluations=catalogue.evaluations,
            best_plan=plan,
            best_choices=value.choices(elites[0]),
            state=state,
        )


def _first_population(
    n_devices: int, settings: EvolveSettings, rng: np.random.Generator
) -> tuple[Genome, ...]:
    return tuple(random_genome(n_devices, rng) for _ in range(settings.population))


def _best_of(genomes: tuple[Genome, ...], value: Evaluator, count: int) -> tuple[Genome, ...]:
    """The best different individuals; those without any plan come last, in a fixed order."""
    unique = {genome.groups: genome for genome in reversed(genomes)}
    feasible = [(found.score, groups) for groups, genome in unique.items() if (found := value(genome))]
    ranked = [groups for _, groups in sorted(feasible)]
    ranked += sorted(groups for groups, genome in unique.items() if value(genome) is None)
    return tuple(unique[groups] for groups in ranked[:count])


def _children(
    elites: tuple[Genome, ...],
    population: tuple[Genome, ...],
    settings: EvolveSettings,
    rng: np.random.Generator,
) -> tuple[Genome, ...]:
    """One parent is an elite, the other anybody."""
    pool = elites + population
    children = []
    for _ in range(settings.population):
        first = elites[int(rng.integers(0, len(elites)))]
        second = pool[int(rng.integers(0, len(pool)))]
        children.append(mutate(crossover(first, second, rng), rng))
    return tuple(children)

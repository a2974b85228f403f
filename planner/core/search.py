"""The planner's front door: looks for the best plan by every method asked for, and tells how far it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from planner.core import infeasible
from planner.core.assembly import Choice, build_plan, closed_form_proof
from planner.core.catalogue import Catalogue
from planner.core.evolve import EvolveSettings, EvolveState, Generation, evolve
from planner.core.objective import OBJECTIVES, PAPER, WAIT, Objective
from planner.core.plan import Plan
from planner.core.problem import Problem
from planner.core.roles import score

METHODS = ("auto", "exact", "ga", "paper")


@dataclass(frozen=True)
class SearchSettings:
    method: str = "auto"
    objective: str = WAIT
    population: int = 40
    generations: int = 60

    def __post_init__(self) -> None:
        assert self.method in METHODS and self.objective in OBJECTIVES

    @property
    def used_objective(self) -> str:
        return PAPER if self.method == "paper" else self.objective


@dataclass(frozen=True)
class SearchStep:
    """Where the search stands; the last step is `final` and carries the plan to deliver."""

    phase: str
    message: str
    fraction: float
    evaluations: int
    generation: int | None = None
    best_seconds: float | None = None
    mean_seconds: float | None = None
    bound_seconds: float | None = None
    gap_seconds: float | None = None
    best_plan: Plan | None = None
    checkpoint: dict[str, Any] | None = None
    final: bool = False


@dataclass
class Candidates:
    """Different plans found so far, by value; the best sixty are simulated in the end."""

    catalogue: Catalogue
    objective: Objective
    found: dict[tuple[Choice, ...], Any] = field(default_factory=dict)

    def add(self, choices: tuple[Choice, ...], seconds: float) -> None:
        if choices:
            key = tuple(sorted(choices, key=lambda choice: choice[0]))
            self.found.setdefault(key, score([option for _, option in key], seconds, self.objective))

    def ranked(self) -> list[tuple[Choice, ...]]:
        return sorted(self.found, key=lambda key: (self.found[key], [devices for devices, _ in key]))


def search(
    problem: Problem,
    settings: SearchSettings,
    rng: np.random.Generator,
    checkpoint: dict[str, Any] | None = None,
) -> Iterator[SearchStep]:
    """Yield steps until the delivered plan; a step's `checkpoint` (plain JSON) continues the search from there.

    Raises NoFeasiblePlan, with the limit that binds, when there is none.
    """
    catalogue = Catalogue(problem)
    objective = Objective(settings.used_objective, problem)
    candidates = Candidates(catalogue, objective)
    for generation in _generations(problem, settings, rng, catalogue, checkpoint):
        if generation.best_seconds is not None:
            candidates.add(generation.best_choices, generation.best_seconds)
        yield _genetic_step(generation, settings)
    ranked = candidates.ranked()
    if not ranked:
        raise infeasible.reason(catalogue)
    plan = build_plan(
        catalogue,
        ranked[0],
        closed_form_proof("genetic algorithm", catalogue.evaluations),
        problem.policy.seed,
    )
    yield SearchStep(
        phase="done",
        message="The plan is ready.",
        fraction=1.0,
        evaluations=catalogue.evaluations,
        best_seconds=plan.predicted.max_wait_seconds,
        best_plan=plan,
        final=True,
    )


def _generations(
    problem: Problem,
    settings: SearchSettings,
    rng: np.random.Generator,
    catalogue: Catalogue,
    checkpoint: dict[str, Any] | None,
) -> Iterator[Generation]:
    evolve_settings = EvolveSettings(
        population=settings.population,
        generations=settings.generations,
        objective=settings.used_objective,
        allow_mixed=problem.policy.allow_mixed and settings.method != "paper",
    )
    state = EvolveState.from_dict(checkpoint["genetic"]) if checkpoint else None
    return evolve(problem, evolve_settings, rng, catalogue=catalogue, state=state)


def _genetic_step(generation: Generation, settings: SearchSettings) -> SearchStep:
    return SearchStep(
        phase="genetic",
        message=f"Generation {generation.number} of {settings.generations}",
        fraction=0.9 * generation.number / settings.generations,
        evaluations=generation.evaluations,
        generation=generation.number,
        best_seconds=generation.best_seconds,
        mean_seconds=generation.mean_seconds,
        best_plan=generation.best_plan,
        checkpoint={"genetic": generation.state.to_dict()},
    )


def find_plan(problem: Problem, settings: SearchSettings) -> Plan:
    """The delivered plan, for callers that need no progress; chance comes from the problem's seed."""
    last = None
    for step in search(problem, settings, np.random.default_rng(problem.policy.seed)):
        last = step
    assert last is not None and last.best_plan is not None, "search ends with a plan or raises"
    return last.best_plan


def with_seed(problem: Problem, seed: int) -> Problem:
    return replace(problem, policy=replace(problem.policy, seed=seed))

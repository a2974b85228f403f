"""The planner's front door: looks for the best plan by every method asked for, and tells how far it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from inventory.core.quantities import counted
from planner.core import checkpoint, columns, exact, infeasible
from planner.core.assembly import Choice, build_plan, closed_form_proof
from planner.core.baselines import LABELS, baselines, comparison_settings
from planner.core.catalogue import Catalogue
from planner.core.evolve import EvolveSettings, EvolveState, Generation, evolve
from planner.core.explain import choice_sentence
from planner.core.forecast import (
    Forecast,
    Rehearsal,
    affordable_candidates,
    bursts,
    promising,
    with_forecast,
)
from planner.core.neighbourhood import improve
from planner.core.objective import (
    OBJECTIVES,
    PAPER,
    QUANTITIES,
    SIMULATED_WAIT,
    SPLITWISE,
    WAIT,
    Objective,
)
from planner.core.plan import Plan, Proof
from planner.core.problem import Problem
from planner.core.shortlist import TIE_SECONDS, Shortlist
from planner.core.slots import MIXED

METHODS = ("auto", "exact", "ga", "paper")
SIMULATIONS_BETWEEN_STEPS = 5
DEVICES_A_GENERATION = (
    2560  # individuals x devices: a generation of a huge cluster stays short enough to cancel
)
FEWEST_INDIVIDUALS = 6
LOCAL_STARTS = 6
LOCAL_TRIES = 60_000  # over all starts
# Simulated waits closer than this count as equal: `Shortlist.pick` then decides.
SAME_WAIT_SHARE, SAME_WAIT_SECONDS = 0.005, 0.02
ONLY_WAITS = "a bound is known for the longest wait only"
LARGER_ONES = "this plan beats them all with larger replicas, for which no bound is known"


@dataclass(frozen=True)
class SearchSettings:
    method: str = "auto"
    objective: str = WAIT
    population: int = 40
    generations: int = 60
    compare: bool = True  # with the plans of other planners, which costs more time than an exact search

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


def search(
    problem: Problem,
    settings: SearchSettings,
    rng: np.random.Generator,
    kept: dict[str, Any] | None = None,
) -> Iterator[SearchStep]:
    """Yield steps until the delivered plan; a step's `checkpoint` (plain JSON) continues the search from there.

    Raises NoFeasiblePlan, with the limit that binds, when there is none.
    """
    yield from _Search(problem, settings, rng).steps(kept)


def find_plan(problem: Problem, settings: SearchSettings) -> Plan:
    """The delivered plan, for callers that need no progress; chance comes from the problem's seed."""
    last = None
    for step in search(problem, settings, np.random.default_rng(problem.policy.seed)):
        last = step
    assert last is not None and last.best_plan is not None, "search ends with a plan or raises"
    return last.best_plan


class _Search:
    def __init__(self, problem: Problem, settings: SearchSettings, rng: np.random.Generator) -> None:
        self.problem = problem
        self.settings = settings
        self.rng = rng
        self.catalogue = Catalogue(problem)
        self.objective = Objective(settings.used_objective, problem)
        # The planners of the other objectives keep prefill and decode apart.
        self.allow_mixed = problem.policy.allow_mixed and self.objective.is_wait
        self.is_exhausted = False  # every plan there is will be simulated
        self.found = Shortlist(self.objective)
        self.bests: dict[tuple[Choice, ...], float] = {}  # of the generations
        self.bound: float | None = None
        self.bound_devices = 0  # a replica may have for the bound to speak of it
        self.method = "genetic algorithm"
        self.rehearsed: dict[tuple[Choice, ...], tuple[Plan, Rehearsal]] = {}
        self.told: dict[tuple[Choice, ...], Forecast] = {}
        self.drawn = bursts(problem.workload, problem.policy.seed)

    def steps(self, kept: dict[str, Any] | None) -> Iterator[SearchStep]:
        if self._wants_exact():
            yield from self._exact()
        if self._wants_columns():
            yield from self._columns()
        if self.settings.method != "exact" or not self._wants_exact():
            yield from self._genetic(kept)
        if self._wants_local_search():
            yield from self._local_search(LOCAL_STARTS)
        if self._wants_generation():
            yield from self._generation()
            yield from self._local_search(1)
        if not self.found.scores:
            raise infeasible.reason(self.catalogue)
        compared: dict[str, Any] = {}
        if self.settings.compare:
            yield from self._baselines(compared)
        yield from self._simulate()
        yield self._deliver(compared)

    def _wants_exact(self) -> bool:
        """For the other objectives only when asked for: without, the plan is that of the planner compared with."""
        small = len(self.problem.devices) <= exact.MOST_DEVICES
        wanted = self.settings.method == "exact" or (
            self.settings.method == "auto" and self.objective.is_wait
        )
        return wanted and small and self.objective.name != SPLITWISE

    def _wants_columns(self) -> bool:
        many = len(self.problem.devices) > exact.ALL_GROUPS_DEVICES and self.objective.is_wait
        return (
            self.settings.method in ("auto", "exact") and many and columns.largest_replica(self.catalogue) > 0
        )

    def _take_bound(self, seconds: float, limit: int, method: str) -> None:
        """A bound for plans of replicas of up to `limit` devices, unless one for larger ones is known."""
        if limit > self.bound_devices:
            self.bound, self.bound_devices = seconds, limit
            size = "" if self._speaks_of_all() else f", replicas of up to {counted(limit, 'device')}"
            self.method = method + size

    def _speaks_of_all(self) -> bool:
        return self.bound_devices >= min(len(self.problem.devices), self.problem.model.blocks)

    def _wants_local_search(self) -> bool:
        many = len(self.problem.devices) > exact.ALL_GROUPS_DEVICES
        return self.settings.method in ("auto", "exact") and many and self.objective.is_wait

    def _columns(self) -> Iterator[SearchStep]:
        for step in columns.solve(self.catalogue, self.objective, self.allow_mixed):
            if step.seconds is not None:
                self.found.add(step.choices, step.seconds)
                assert step.bound_seconds is not None, "a plan comes with its bound here"
                limit = columns.largest_replica(self.catalogue)
                self._take_bound(step.bound_seconds, limit, "integer program over kinds")
            yield self._step("columns", step.message, 0.1 + 0.1 * step.fraction)

    def _wants_generation(self) -> bool:
        able = self.bound is None and columns.can_generate(self.catalogue, self.objective)
        waits = min((score.wait_seconds for score in self.found.scores.values()), default=0.0)
        return self.settings.method in ("auto", "exact") and able and waits > TIE_SECONDS

    def _generation(self) -> Iterator[SearchStep]:
        starts = self.found.ranked()[:LOCAL_STARTS]
        for step in columns.generate(self.catalogue, self.objective, starts, self.allow_mixed):
            if step.seconds is not None:
                self.found.add(step.choices, step.seconds)
            if step.bound_seconds is not None:
                limit = columns.enumerable_size(self.catalogue)
                self._take_bound(step.bound_seconds, limit, "column generation")
            yield self._step("columns", step.message, 0.7)

    def _local_search(self, most_starts: int) -> Iterator[SearchStep]:
        starts = self.found.ranked()[:most_starts]
        for number, start in enumerate(starts):
            tries = LOCAL_TRIES // len(starts)
            for reached in improve(self.catalogue, self.objective, start, self.rng, tries):
                share = (number + reached.tries / tries) / len(starts)
                step = self._step(
                    "local search", f"Improving plan {number + 1} of {len(starts)}", 0.6 + 0.1 * share
                )
                yield replace(step, best_seconds=reached.seconds)
            self.found.add(reached.choices, reached.seconds)

    def _exact(self) -> Iterator[SearchStep]:
        for step in exact.solve(self.catalogue, self.objective, self.allow_mixed):
            for ranked in step.plans:
                self.found.add(ranked.choices, ranked.seconds)
            if step.plans:
                limit = exact.replica_limit(len(self.problem.devices))
                self._take_bound(step.plans[0].seconds, limit, "exact over all groupings and roles")
                self._add_every_option()
            yield self._step("exact", f"{step.done} of {step.total} groups", 0.1 * step.done / step.total)

    def _add_every_option(self) -> None:
        """One device alone is run with some number of slots, and few enough of them to simulate each."""
        options = self.catalogue.options(MIXED, self.catalogue.group_of((0,)))
        few = len(options) <= affordable_candidates(self.problem.workload, len(self.drawn))
        if len(self.problem.devices) == 1 and self.objective.is_wait and few:
            self.is_exhausted = True
            for option in options:
                seconds = self.objective.seconds(np.inf, option.requests_per_second, option.slots)
                self.found.add((((0,), option),), float(seconds))

    def _evolve_settings(self) -> EvolveSettings:
        n = len(self.problem.devices)
        most = max(FEWEST_INDIVIDUALS, DEVICES_A_GENERATION // n)
        population, generations = min(self.settings.population, most), self.settings.generations
        if not self.objective.is_wait:
            compared = comparison_settings(n, self.objective.name)
            population, generations = (
                min(population, compared.population),
                min(generations, compared.generations),
            )
        return EvolveSettings(
            population, generations, objective=self.objective.name, allow_mixed=self.allow_mixed
        )

    def _genetic(self, kept: dict[str, Any] | None) -> Iterator[SearchStep]:
        settings, state = self._evolve_settings(), None
        if kept:
            state = EvolveState.from_dict(kept["genetic"])
            for choices, seconds in checkpoint.read(self.catalogue, kept["bests"]):
                self._keep(choices, seconds)
            if not self._knows_all_groups():
                self.method += f"; replicas counted anew from generation {state.number + 1} on"
        for generation in evolve(self.problem, settings, self.rng, catalogue=self.catalogue, state=state):
            if generation.best_seconds is not None:
                self._keep(generation.best_choices, generation.best_seconds)
            yield self._generation_step(generation, settings.generations)

    def _keep(self, choices: tuple[Choice, ...], seconds: float) -> None:
        if not self.objective.is_wait:
            self.found.scores.clear()  # the last one is what that planner would deliver
            self.bests.clear()
        self.found.add(choices, seconds)
        self.bests.setdefault(choices, seconds)

    def _knows_all_groups(self) -> bool:
        """The exact solver works out every group, whatever the generations come upon."""
        return self._wants_exact() and len(self.problem.devices) <= exact.ALL_GROUPS_DEVICES

    def _generation_step(self, generation: Generation, of: int) -> SearchStep:
        share = generation.number / of
        step = self._step("genetic", f"Generation {generation.number} of {of}", 0.2 + 0.4 * share)
        best = generation.best_seconds
        kept = {"genetic": generation.state.to_dict(), "bests": checkpoint.written(self.bests.items())}
        return replace(
            step,
            generation=generation.number,
            best_seconds=best,
            mean_seconds=generation.mean_seconds,
            gap_seconds=None if best is None or self.bound is None else max(0.0, best - self.bound),
            best_plan=self._with_proof(generation.best_plan, best),
            checkpoint=kept,
        )

    def _baselines(self, compared: dict[str, Any]) -> Iterator[SearchStep]:
        """Other planners' plans; ours takes over the best of them where the policy allows it."""
        floor = self.problem.policy.min_tokens_per_second
        for baseline in baselines(self.catalogue):
            label = f"Comparing with {len(LABELS)} other planners"
            if baseline is not None:
                told = self._tell(baseline.choices) if baseline.choices else None
                curve = self._rehearsed(baseline.choices)[1].wait_curve_seconds() if told else []
                compared[baseline.name] = baseline.to_dict(told, curve, floor)
            yield self._step("baselines", label, 0.7 + 0.15 * len(compared) / len(LABELS))

    def _simulate(self) -> Iterator[SearchStep]:
        """One burst for each of the best plans, and all bursts for those that do well in it."""
        wanted = affordable_candidates(self.problem.workload, len(self.drawn))
        ranked = self.found.ranked()[: wanted if self.objective.is_wait else 1]
        first = []
        for number, choices in enumerate(ranked):
            first.append(self._rehearsed(choices)[1].forecast(1))
            if number % SIMULATIONS_BETWEEN_STEPS == 0:
                yield self._simulation_step(
                    f"Simulating plan {number + 1} of {len(ranked)}", number / len(ranked) / 2
                )
        good = promising(first, self.problem.policy.min_tokens_per_second)
        if self.is_exhausted:
            good = list(range(len(ranked)))
        for number, k in enumerate(good):
            self._tell(ranked[k])
            if number % SIMULATIONS_BETWEEN_STEPS == 0:
                yield self._simulation_step(
                    f"More bursts for {counted(len(good), 'plan')}", 0.5 + number / len(good) / 2
                )

    def _simulation_step(self, message: str, share: float) -> SearchStep:
        return self._step("simulation", message, 0.85 + 0.14 * share)

    def _rehearsed(self, choices: tuple[Choice, ...]) -> tuple[Plan, Rehearsal]:
        key = tuple(sorted(choices, key=lambda choice: choice[0]))
        if key not in self.rehearsed:
            proof = closed_form_proof(self.method, self.catalogue.evaluations)
            plan = build_plan(self.catalogue, key, proof, self.problem.policy.seed)
            self.rehearsed[key] = (plan, Rehearsal(self.problem, plan, self.drawn))
        return self.rehearsed[key]

    def _tell(self, choices: tuple[Choice, ...]) -> Forecast:
        """What all bursts say of these replicas; from then on they may be delivered."""
        key = tuple(sorted(choices, key=lambda choice: choice[0]))
        if key not in self.told:
            self.told[key] = self._rehearsed(key)[1].forecast(len(self.drawn))
        return self.told[key]

    def _deliver(self, compared: dict[str, Any]) -> SearchStep:
        choices = self._best_simulated() if self.objective.is_wait else self.found.ranked()[0]
        plan, told = self._rehearsed(choices)[0], self.told[choices]
        closed = self.found.scores[choices].wait_seconds if choices in self.found.scores else None
        plan = with_forecast(plan, told)
        proof = self._proof(closed)
        if self.is_exhausted:
            proof = self._proof_by_simulation(told)
        said = (*plan.assumptions, self._chosen_from(closed)) if self.objective.is_wait else plan.assumptions
        plan = replace(plan, proof=proof, baselines=compared, assumptions=said)
        step = self._step("done", "The plan is ready.", 1.0)
        return replace(step, best_seconds=plan.predicted.max_wait_seconds, best_plan=plan, final=True)

    def _chosen_from(self, closed: float | None) -> str:
        values = [score.wait_seconds for key, score in self.found.scores.items() if key in self.rehearsed]
        ties = sum(closed is not None and value <= closed + TIE_SECONDS for value in values)
        return choice_sentence(len(values), ties, is_exhausted=self.is_exhausted)

    def _best_simulated(self) -> tuple[Choice, ...]:
        """Lowest simulated longest wait among the plans that the policy allows and that hold the floor."""
        floor = self.problem.policy.min_tokens_per_second
        allowed = [key for key in self.told if key in self.found.scores or self._is_allowed(key)]
        fast = [key for key in allowed if self.told[key].holds(floor)] or allowed
        least = min(self.told[key].max_wait_seconds for key in fast)
        most = least if self.is_exhausted else least * (1 + SAME_WAIT_SHARE) + SAME_WAIT_SECONDS
        near = [key for key in fast if self.told[key].max_wait_seconds <= most]
        for key in near:
            if key not in self.found.scores:
                self.found.add(key, self._rehearsed(key)[0].predicted.max_wait_seconds)
        return self.found.pick(near, self.told)

    def _is_allowed(self, choices: tuple[Choice, ...]) -> bool:
        is_mixed = choices[0][1].role == "mixed"
        used = sum(len(devices) for devices, _ in choices)
        return (self.allow_mixed or not is_mixed) and (
            self.problem.policy.allow_idle or used == len(self.problem.devices)
        )

    def _with_proof(self, plan: Plan | None, closed: float | None) -> Plan | None:
        """A search may be stopped at any generation: the plan of that moment says what is known of it then."""
        return plan and replace(plan, proof=self._proof(closed))

    def _proof(self, closed: float | None) -> Proof:
        # No plan waits less than not at all.
        bound = 0.0 if self.bound is None and closed is not None and closed <= TIE_SECONDS else self.bound
        method = self.method
        if bound is None and not self.objective.is_wait:
            method += f"; {ONLY_WAITS}"
        if bound is not None and closed is not None and closed < bound - TIE_SECONDS:
            assert not self._speaks_of_all(), "nothing beats a bound for all plans"
            bound, method = None, f"{method}; {LARGER_ONES}"
        gap = None if bound is None or closed is None else max(0.0, closed - bound)
        is_for_all = self._speaks_of_all() or bound == 0.0
        optimal = is_for_all and gap is not None and gap <= TIE_SECONDS
        evaluations, name = self.catalogue.evaluations, QUANTITIES[self.objective.name]
        return Proof(method, optimal, bound, 0.0 if optimal else gap, evaluations, name, closed)

    def _proof_by_simulation(self, told: Forecast) -> Proof:
        seconds, evaluations = told.max_wait_seconds, self.catalogue.evaluations
        method = "every useful number of slots simulated"
        return Proof(method, True, seconds, 0.0, evaluations, SIMULATED_WAIT, seconds)

    def _step(self, phase: str, message: str, fraction: float) -> SearchStep:
        return SearchStep(phase, message, fraction, self.catalogue.evaluations, bound_seconds=self.bound)

"""Large clusters of many kinds: column generation, a bound, and plans made of its columns."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence

import numpy as np

from inventory.core.quantities import counted
from planner.core.assembly import Choice
from planner.core.catalogue import Catalogue, Option
from planner.core.columns.enumeration import Enumeration, enumerable_size
from planner.core.columns.program import Prices, Program
from planner.core.columns.step import ColumnsStep
from planner.core.memory import Floats
from planner.core.objective import Objective
from planner.core.slots import DECODE, MIXED, PREFILL

ROUNDS = 60
BISECTIONS = 30
CLOSE = 1e-5
CONVERGED = 1e-5  # of the whole value: replicas worth so little more than their price change nothing
DEARER = (0.0, 0.0001, 0.0005, 0.002)  # by how much prices are raised until no replica is worth more
BOUND_STEPS = (0.0001, 0.0005, 0.002, 0.005, 0.02, 0.1)
PLAN_STEPS = (0.002, 0.006, 0.012, 0.02, 0.03, 0.05)
FEWEST_DEVICES = 2
PLAN_COLUMNS, PLAN_PROMPTS = 800, 200
PLANS = "plans of these replicas"
FURTHER_PLANS, CLOSER = 4, 0.85


def can_generate(catalogue: Catalogue, objective: Objective) -> bool:
    """Whether there is a bound for replicas of two devices and more: for the burst's longest wait only."""
    return objective.is_wait and enumerable_size(catalogue) >= FEWEST_DEVICES


def generate(
    catalogue: Catalogue, objective: Objective, plans: Sequence[tuple[Choice, ...]], allow_mixed: bool
) -> Iterator[ColumnsStep]:
    """Yield progress, then the best plan made of the columns, and a bound for all plans of replicas so small."""
    modes: list[tuple[str, ...]] = [(PREFILL, DECODE), (MIXED,)] if allow_mixed else [(PREFILL, DECODE)]
    last = []
    for number, roles in enumerate(modes):
        own = [option for plan in plans for _, option in plan if option.role in roles]
        step = ColumnsStep("", 0.0, (), None, np.inf)  # where no replica can serve, nothing beats anything
        for step in _Generation(catalogue, objective, roles).steps(own):
            yield ColumnsStep(step.message, (number + step.fraction) / len(modes))
        last.append(step)
    bounds = [step.bound_seconds for step in last if step.bound_seconds is not None]
    bound = min(bounds) if len(bounds) == len(modes) and min(bounds) < np.inf else None
    best = min(last, key=lambda step: np.inf if step.seconds is None else step.seconds)
    yield ColumnsStep(PLANS, 1.0, best.choices, best.seconds, bound)


class _Generation:
    """Column generation for one mode: prefill and decode apart, or mixed replicas."""

    def __init__(self, catalogue: Catalogue, objective: Objective, roles: Sequence[str]) -> None:
        self.catalogue = catalogue
        self.objective = objective
        self.requests = objective.problem.workload.requests
        self.size = enumerable_size(catalogue)
        self.parts = [Enumeration(catalogue, role, self.size) for role in roles]
        self.prefill = self.parts[0] if len(self.parts) == 2 else None
        self.serving = self.parts[-1]
        self.slot_weight = objective.slot_weight

    def steps(self, given: Sequence[Option]) -> Iterator[ColumnsStep]:
        for part, enumeration in enumerate(self.parts):
            for share in enumeration.work_out():
                done = 0.4 * (part + share) / len(self.parts)
                yield ColumnsStep(f"all replicas of up to {counted(self.size, 'device')}", done)
        if not all(enumeration.groups for enumeration in self.parts):
            yield ColumnsStep("no replica can serve", 1.0, (), None, np.inf)
            return
        if self.serving.most_slots() >= self.requests:
            # A slot for everybody ends the waiting for decode as well: R <= S is R - S <= theta X with any theta.
            self.slot_weight = 1.0
        program = Program(
            self.catalogue,
            self.objective,
            self._offered(PREFILL, 1.0) + [option for option in given if option.role == PREFILL],
            self._offered(DECODE, 1e6) + [option for option in given if option.role != PREFILL],
        )
        program.slot_weight = self.slot_weight
        wait = yield from self._converge(program)
        yield from self._conclude(program, wait, given)

    def _offered(self, role: str, theta: float) -> list[Option]:
        enumeration = self.prefill if role == PREFILL else self.serving
        free = dict.fromkeys(self.catalogue.costs.kinds, 0.0)
        return enumeration.best(free, self.slot_weight, theta)[1] if enumeration else []

    def _converge(self, program: Program) -> Generator[ColumnsStep, None, float]:
        """Add columns until no replica is worth more than its price; returns the wait that fractions could hold."""
        wait = 1.0
        while program.priced(wait).value < self.requests:
            wait *= 4
        step = ColumnsStep(f"{len(program.options)} kinds of replicas", 0.4)
        wait = yield from self._shortest_wait(program, wait, step)
        for number in range(ROUNDS):
            prices = program.priced(wait)
            gains, offered = self._price(prices, wait, prices.devices)
            program.add(offered)
            step = ColumnsStep(f"{len(program.options)} kinds of replicas", 0.4 + 0.3 * number / ROUNDS)
            shorter = yield from self._shortest_wait(program, wait, step)
            if gains <= CONVERGED * prices.value and wait - shorter <= CLOSE * wait:
                break
            wait = shorter
        return wait

    def _price(self, prices: Prices, wait: float, devices: dict[int, float]) -> tuple[float, list[Option]]:
        most, offered = self.serving.best(devices, self.slot_weight, self.objective.theta(wait))
        if self.prefill:
            also, prefill = self.prefill.best(devices, self.slot_weight, prices.prefill_rate)
            most, offered = max(most, also), prefill + offered
        return most, offered

    def _shortest_wait(
        self, program: Program, high: float, step: ColumnsStep
    ) -> Generator[ColumnsStep, None, float]:
        """What fractions of the present columns could hold, by bisection."""
        low = 0.0
        for _ in range(BISECTIONS):
            if high - low <= CLOSE * high:
                break
            yield step
            middle = (low + high) / 2
            if program.priced(middle).value < self.requests:
                low = middle
            else:
                high = middle
        return high

    def _conclude(self, program: Program, wait: float, given: Sequence[Option]) -> Iterator[ColumnsStep]:
        bound = None
        for step in BOUND_STEPS:
            yield ColumnsStep("bound", 0.75)
            if self._is_out_of_reach(program, wait * (1 - step)):
                bound = wait * (1 - step)
                break
        yield ColumnsStep(PLANS, 0.8)
        real = self._real_program(program, wait, given)
        best: Floats | None = None
        for gap in PLAN_STEPS:
            best = yield from self._attempt(real, wait * (1 + gap))
            if best is not None:
                break
        for _ in range(FURTHER_PLANS if best is not None else 0):
            assert best is not None, "only a plan is improved"
            seconds = real.seconds(best)
            better = yield from self._attempt(real, wait + CLOSER * (seconds - wait))
            if better is None or real.seconds(better) >= seconds:
                break
            best = better
        if best is None:
            yield ColumnsStep(PLANS, 1.0, bound_seconds=bound)
        else:
            yield ColumnsStep(PLANS, 1.0, real.choices(best), real.seconds(best), bound)

    def _attempt(self, real: Program, seconds: float) -> Generator[ColumnsStep, None, Floats | None]:
        for found, _ in real.attempts(seconds, whole=True):
            yield ColumnsStep(PLANS, 0.9)
            if found is not None:
                return found
        return None

    def _real_program(self, program: Program, wait: float, given: Sequence[Option]) -> Program:
        """Replicas that are nearly worth their price, as they really are, with the ports as they are."""
        prices, theta = program.priced(wait), self.objective.theta(wait)
        near = [(self.serving, self.serving.nearest(prices.devices, self.slot_weight, theta, PLAN_COLUMNS))]
        if self.prefill:
            prompts = self.prefill.nearest(
                prices.devices, self.slot_weight, prices.prefill_rate, PLAN_PROMPTS
            )
            near.append((self.prefill, prompts))
        real = list(given)
        for enumeration, groups in near:
            self.catalogue.work_out(enumeration.role, groups)
            for group in groups:
                real += self._useful(self.catalogue.options(enumeration.role, group), wait)
        first = [option for option in dict.fromkeys(real) if option.role == PREFILL]
        found = Program(
            self.catalogue,
            self.objective,
            first,
            [option for option in dict.fromkeys(real) if option.role != PREFILL],
        )
        found.look_at_the_ends()
        return found

    def _useful(self, options: Sequence[Option], wait: float) -> list[Option]:
        """Those that suit plans near the bound best, and those with the most rate and the most slots."""
        thetas = [self.objective.theta(seconds) for seconds in (wait, wait * (1 + PLAN_STEPS[-1]))]
        picked = [self.objective.pick(options, theta) for theta in (*thetas, *self.objective.first_thetas)]
        return [option for option in dict.fromkeys(picked) if option is not None]

    def _is_out_of_reach(self, program: Program, wait: float) -> bool:
        """Whether no plan at all holds this wait: by duality, with prices raised until no replica is worth more."""
        prices = program.priced(wait)
        paid = sum(program.counts[kind] * price for kind, price in prices.devices.items())
        slack = CONVERGED * prices.value / len(self.catalogue.problem.devices)
        for dearer in DEARER:
            if paid * (1 + dearer) - prices.prefill_paid + CONVERGED * prices.value >= self.requests:
                return False
            raised = {kind: price * (1 + dearer) for kind, price in prices.devices.items()}
            if self._price(prices, wait, raised)[0] <= slack:
                return True
        return False

"""Large clusters of many kinds, serial runtime: column generation, a bound, and plans made of its columns."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence

from planner.core.assembly import Choice
from planner.core.catalogue import Catalogue, Option
from planner.core.columns.enumeration import Enumeration, enumerable_size
from planner.core.columns.program import Prices, Program
from planner.core.columns.step import ColumnsStep
from planner.core.objective import Objective
from planner.core.slots import DECODE, PREFILL

ROUNDS = 60
BISECTIONS = 30
CLOSE = 1e-5
CONVERGED = 1e-5  # of the whole value: replicas worth so little more than their price change nothing
DEARER = (0.0, 0.0001, 0.0005, 0.002)  # by how much prices are raised until no replica is worth more
BOUND_STEPS = (0.0001, 0.0005, 0.002, 0.005, 0.02, 0.1)
PLAN_STEPS = (0.002, 0.006, 0.012, 0.02, 0.03, 0.05)
FEWEST_DEVICES = 2
PLAN_COLUMNS, PLAN_PROMPTS = 1500, 300
FURTHER_PLANS, CLOSER = 4, 0.85


def can_generate(catalogue: Catalogue, objective: Objective) -> bool:
    """For the serial runtime, equal links, devices all different, and bursts that outnumber the slots."""
    problem = catalogue.problem
    n = len(problem.devices)
    return (
        catalogue.serial
        and not problem.pairs
        and problem.policy.allow_idle
        and objective.is_wait
        and len(catalogue.costs.kinds) == n
        and enumerable_size(n) >= FEWEST_DEVICES
        and n * problem.policy.max_slots < problem.workload.requests
    )


def generate(
    catalogue: Catalogue, objective: Objective, plans: Sequence[tuple[Choice, ...]]
) -> Iterator[ColumnsStep]:
    """Yield progress, then a plan made of the columns, and a bound for all plans with prefill and decode apart."""
    yield from _Generation(catalogue, objective).steps(plans)


class _Generation:
    def __init__(self, catalogue: Catalogue, objective: Objective) -> None:
        self.catalogue = catalogue
        self.objective = objective
        self.requests = objective.problem.workload.requests
        self.size = enumerable_size(len(catalogue.costs.kinds))
        self.prefill = Enumeration(catalogue, PREFILL, self.size)
        self.decode = Enumeration(catalogue, DECODE, self.size)

    def steps(self, plans: Sequence[tuple[Choice, ...]]) -> Iterator[ColumnsStep]:
        for part, enumeration in enumerate((self.prefill, self.decode)):
            for share in enumeration.work_out():
                yield ColumnsStep(f"all replicas of up to {self.size} devices", 0.2 * (part + share))
        if not self.prefill.groups or not self.decode.groups:
            return
        given = [option for plan in plans for _, option in plan]
        first = self.prefill.best(self._free(), self.objective, 1.0)[1]
        second = self.decode.best(self._free(), self.objective, 1e6)[1]
        program = Program(
            self.catalogue,
            self.objective,
            first + [option for option in given if option.role == PREFILL],
            second + [option for option in given if option.role == DECODE],
        )
        wait = yield from self._converge(program)
        yield from self._conclude(program, wait, given)

    def _free(self) -> dict[int, float]:
        return dict.fromkeys(self.catalogue.costs.kinds, 0.0)

    def _converge(self, program: Program) -> Generator[ColumnsStep, None, float]:
        """Add columns until no replica is worth more than its price; returns the wait that fractions could hold."""
        wait = 1.0
        while program.priced(wait).value < self.requests:
            wait *= 4
        wait = self._shortest_wait(program, wait)
        for number in range(ROUNDS):
            prices = program.priced(wait)
            gains, offered = self._price(prices, wait, prices.devices)
            program.add(offered)
            yield ColumnsStep(f"{len(program.options)} kinds of replicas", 0.4 + 0.3 * number / ROUNDS)
            shorter = self._shortest_wait(program, wait)
            if gains <= CONVERGED * prices.value and wait - shorter <= CLOSE * wait:
                break
            wait = shorter
        return wait

    def _price(self, prices: Prices, wait: float, devices: dict[int, float]) -> tuple[float, list[Option]]:
        first, prefill = self.prefill.best(devices, self.objective, prices.prefill_rate)
        second, decode = self.decode.best(devices, self.objective, self.objective.theta(wait))
        return max(first, second), prefill + decode

    def _shortest_wait(self, program: Program, high: float) -> float:
        """What fractions of the present columns could hold, by bisection."""
        low = 0.0
        for _ in range(BISECTIONS):
            if high - low <= CLOSE * high:
                break
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
        real = self._real_program(program, wait, given)
        choices: tuple[Choice, ...] = ()
        seconds: float | None = None
        for gap in PLAN_STEPS:
            yield ColumnsStep("plans of these replicas", 0.85)
            used, _ = real.reach(wait * (1 + gap), whole=True)
            if used is not None:
                choices, seconds = real.choices(used), real.seconds(used)
                break
        for _ in range(FURTHER_PLANS):
            if seconds is None:
                break
            yield ColumnsStep("plans of these replicas", 0.9)
            used, _ = real.reach(wait + CLOSER * (seconds - wait), whole=True)
            if used is None or real.seconds(used) >= seconds:
                break
            choices, seconds = real.choices(used), real.seconds(used)
        yield ColumnsStep("plans of these replicas", 1.0, choices, seconds, bound)

    def _real_program(self, program: Program, wait: float, given: Sequence[Option]) -> Program:
        """Replicas that are nearly worth their price, as they really are, with the ports as they are."""
        prices, theta = program.priced(wait), self.objective.theta(wait)
        first = self.prefill.nearest(prices.devices, self.objective, prices.prefill_rate, PLAN_PROMPTS)
        second = self.decode.nearest(prices.devices, self.objective, theta, PLAN_COLUMNS)
        prefill = [option for group in first for option in self.catalogue.options(PREFILL, group)]
        decode = [option for group in second for option in self.catalogue.options(DECODE, group)]
        prefill += [option for option in given if option.role == PREFILL]
        decode += [option for option in given if option.role == DECODE]
        found = Program(
            self.catalogue, self.objective, list(dict.fromkeys(prefill)), list(dict.fromkeys(decode))
        )
        found.look_at_the_ends()
        return found

    def _is_out_of_reach(self, program: Program, wait: float) -> bool:
        """Whether no plan at all holds this wait: by duality, with prices raised until no replica is worth more."""
        prices = program.priced(wait)
        paid = sum(prices.devices.values())
        slack = CONVERGED * prices.value / len(prices.devices)
        for dearer in DEARER:
            if paid * (1 + dearer) - prices.prefill_paid + CONVERGED * prices.value >= self.requests:
                return False
            raised = {kind: price * (1 + dearer) for kind, price in prices.devices.items()}
            if self._price(prices, wait, raised)[0] <= slack:
                return True
        return False

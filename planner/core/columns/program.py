"""An integer program over replicas as columns, solved by HiGHS.

A longest wait W can be held exactly when prefill is fast enough, X_P >= 1 / (Ta + W / (R - 1)), and the burst is
served in time, c S + X_D (W + (R - 1) Ta) >= R (see objective.py): both linear in how often each replica is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from planner.core.assembly import Choice
from planner.core.catalogue import Catalogue, Option
from planner.core.memory import Floats
from planner.core.objective import Objective
from planner.core.slots import PREFILL

BISECTIONS = 40
FIRST_GAPS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)  # how far above the bound a first plan is looked for
NODE_LIMIT = 100  # so that one call stays short enough to cancel the search
INFEASIBLE = 2  # scipy's status of a program without a solution
CLOSE_ENOUGH = 0.001  # a plan this near the bound is good enough
BOUND_SHARE = 1e-5
TARGET_SHARE = 0.5
ENOUGH = 1 - 1e-9


def kind_counts(catalogue: Catalogue) -> dict[int, int]:
    kinds = catalogue.problem.kind_of
    return {kind: kinds.count(kind) for kind in sorted(set(kinds))}


def kinds_used(options: Sequence[Option], kinds: list[int]) -> Floats:
    return np.array([[option.group.count(kind) for kind in kinds] for option in options], dtype=np.float64)


def undominated(options: Sequence[Option], kinds: list[int], merits: Floats) -> list[Option]:
    """Without the replicas that another one matches in every merit with no more devices of any kind."""
    if not options:
        return []
    used = kinds_used(options, kinds)
    order = np.lexsort((*(-merits.T), used.sum(axis=1)))
    kept: list[int] = []
    for k in order:
        earlier = np.array(kept, dtype=np.int64)
        better = (used[earlier] <= used[k]).all(axis=1) & (merits[earlier] >= merits[k]).all(axis=1)
        if not better.any():
            kept.append(int(k))
    return [options[k] for k in kept]


def rate_and_slots(options: Sequence[Option]) -> Floats:
    return np.array([[option.requests_per_second, option.slots] for option in options]).reshape(-1, 2)


@dataclass(frozen=True)
class Result:
    choices: tuple[Choice, ...]
    seconds: float | None
    load: float
    bound_seconds: float | None


@dataclass(frozen=True)
class Prices:
    """Duals of the fractional program: worth of a device of each kind and of a prefill request per second."""

    value: float
    devices: dict[int, float]
    prefill_rate: float
    prefill_paid: float


class Program:
    """One integer program: prefill and decode columns, or mixed ones alone."""

    def __init__(
        self, catalogue: Catalogue, objective: Objective, prefill: Sequence[Option], serving: Sequence[Option]
    ) -> None:
        self.objective = objective
        self.slot_weight = objective.slot_weight  # in the fractional program; a bound may ask for more
        self.workload = objective.problem.workload
        self.catalogue = catalogue
        self.counts = kind_counts(catalogue)
        self.is_mixed = not prefill
        rates = np.array([[option.requests_per_second] for option in prefill])
        self.prefill = undominated(prefill, list(self.counts), rates)
        self._serve_with(undominated(serving, list(self.counts), rate_and_slots(serving)))

    def _serve_with(self, serving: list[Option]) -> None:
        self.serving = serving
        self.options = self.prefill + serving
        self.used = kinds_used(self.options, list(self.counts)).T
        first = np.arange(len(self.options)) < len(self.prefill)
        rates, slots = rate_and_slots(self.options).T
        self.prefill_rate = np.where(first, rates, 0.0)
        self.decode_rate = np.where(first, 0.0, rates)
        self.slots = np.where(first, 0.0, np.minimum(slots, self.workload.requests))

    def add(self, options: Sequence[Option]) -> None:
        """More columns, those that are there already left out."""
        known = set(self.options)
        fresh = [option for option in dict.fromkeys(options) if option not in known]
        self.prefill += [option for option in fresh if option.role == PREFILL]
        self._serve_with(self.serving + [option for option in fresh if option.role != PREFILL])

    def priced(self, seconds: float) -> Prices:
        """The most that fractions of the columns could serve within a wait, and what each device is worth to it."""
        from scipy.optimize import linprog  # noqa: PLC0415  scipy takes a second to import

        workload = self.workload
        pace = workload.arrival_seconds + seconds / max(1, workload.requests - 1)
        value = self.slot_weight * self.slots + self.objective.theta(seconds) * self.decode_rate
        # Too little prefill costs more than any replica is worth, so that the program always has a solution.
        short = np.append(np.zeros(len(self.options)), 1.0)
        limits = np.array([*self.counts.values(), -1.0 / pace])
        rows = np.vstack(
            [
                np.append(self.used, np.zeros((len(self.counts), 1)), axis=1),
                -np.append(self.prefill_rate, 1.0),
            ]
        )
        if self.is_mixed:
            rows, limits = rows[:-1], limits[:-1]
        fine = 1e3 * workload.requests * pace
        found = linprog(-np.append(value, 0.0) + fine * short, A_ub=rows, b_ub=limits, method="highs")
        assert found.x is not None, "nothing used at all is a solution"
        dual = np.maximum(0.0, -found.ineqlin.marginals)
        per_rate = 0.0 if self.is_mixed else float(dual[-1])
        prices = dict(zip(self.counts, dual.tolist(), strict=False))
        return Prices(-float(found.fun), prices, per_rate, per_rate / pace)

    def best(self) -> Result:
        """Bisection between the bound of fractional replicas and a plan, until they are close or a limit is hit."""
        if not self.serving or not (self.is_mixed or self.prefill):
            return Result((), None, np.inf, None)
        self.look_at_the_ends()
        if self.most_even_rate <= 0:
            return Result((), None, np.inf, None)
        bound = self._fractional_bound()
        best = self._first_plan(bound)
        if best is None or not np.isfinite(self.seconds(best)):
            return Result((), None, np.inf, bound)
        if bound > 0:
            best, bound = self._close_in(best, bound)
        elif self.seconds(best) <= 0:
            even = self._most_even(whole=True)
            best = even if even is not None and self.seconds(even) <= 0 else best
        seconds = self.seconds(best)
        return Result(self.choices(best), seconds, self.load(best), min(bound, seconds))

    def look_at_the_ends(self) -> None:
        """The most slots and the most even rates that fractions of replicas could reach."""
        most = self._program(-self.slots, [], [], whole=False)[0]
        even = self._most_even(whole=False)
        self.most_slots = 0.0 if most is None else float(self.slots @ most)
        self.most_even_rate = 0.0 if even is None else min(self._sums(even)[:2])

    def _first_plan(self, bound: float) -> Floats | None:
        for gap in FIRST_GAPS if bound > 0 else (0.0, *FIRST_GAPS):
            target = bound * (1 + gap) if bound > 0 else gap * self.workload.arrival_seconds
            found = self.reach(target, whole=True)[0]
            if found is not None:
                return found
        return self._most_even(whole=True)

    def _close_in(self, best: Floats, bound: float) -> tuple[Floats, float]:
        if self.most_slots < self.workload.requests and self._even_pace_seconds > self.seconds(best):
            # Only the burst formula's value counts between bound and plan; it is linear in the weight of a rate.
            ends = [self.objective.theta(seconds) for seconds in (bound, self.seconds(best))]
            merits = [[self.objective.value(option, theta) for theta in ends] for option in self.serving]
            used = self.choices(best)
            self._serve_with(undominated(self.serving, list(self.counts), np.array(merits)))
            best = self.as_columns(used)
        for _ in range(BISECTIONS):
            seconds = self.seconds(best)
            if seconds <= bound * (1 + CLOSE_ENOUGH):
                break
            target = bound + TARGET_SHARE * (seconds - bound)
            found, refuted = self.reach(target, whole=True)
            if found is not None and self.seconds(found) < seconds:
                best = found
            elif refuted:
                bound = target
            else:
                break
        return best, bound

    def as_columns(self, choices: tuple[Choice, ...]) -> Floats:
        """A plan in terms of the present columns; a replica that was dropped keeps a column of its own."""
        for _, option in choices:
            if option not in self.options:
                self._serve_with([*self.serving, option])
        used = np.zeros(len(self.options))
        for _, option in choices:
            used[self.options.index(option)] += 1
        return used

    def _fractional_bound(self) -> float:
        """Smallest wait that fractions of replicas could hold."""
        low, high = 0.0, 1.0
        if self.reach(low, whole=False)[0] is not None:
            return low
        while self.reach(high, whole=False)[1]:
            low, high = high, high * 4
        for _ in range(BISECTIONS):
            if high - low <= BOUND_SHARE * high:
                break
            middle = (low + high) / 2
            if self.reach(middle, whole=False)[1]:
                low = middle
            else:
                high = middle
        return low

    @property
    def _even_pace_seconds(self) -> float:
        """From this wait on, prefill and decode can keep the same pace."""
        if self.most_even_rate <= 0:
            return float(np.inf)
        lag = 1.0 / self.most_even_rate - self.workload.arrival_seconds
        return max(0.0, lag) * (self.workload.requests - 1)

    def reach(self, seconds: float, whole: bool) -> tuple[Floats | None, bool]:
        """How often each column is used in a plan that waits at most `seconds`, or whether there surely is none."""
        all_refuted = True
        for found, is_refuted in self.attempts(seconds, whole):
            if found is not None:
                return found, False
            all_refuted &= is_refuted
        return None, all_refuted

    def attempts(self, seconds: float, whole: bool) -> Iterator[tuple[Floats | None, bool]]:
        """`reach` for each way to hold the wait, one program at a time."""
        for row, least, prefill_least in self._requirements(seconds):
            rows = [] if self.is_mixed else [self.prefill_rate]
            # The largest sum, rather than any sum that is large enough: HiGHS proves that several times faster.
            found, most = self._program(-row / least, rows, [prefill_least] * len(rows), whole)
            is_enough = found is not None and float(row @ found) >= least * ENOUGH
            yield found if is_enough else None, -most < ENOUGH

    def _requirements(self, seconds: float) -> list[tuple[Floats, float, float]]:
        """Alternatives that each hold the wait: a row with its least sum over decode, and the least prefill rate."""
        requests = self.workload.requests
        pace = self.workload.arrival_seconds + seconds / max(1, requests - 1)
        value = self.objective.slot_weight * self.slots + self.objective.theta(seconds) * self.decode_rate
        found = [(value, float(requests), 1.0 / pace)]
        if self.most_slots >= requests:
            found.append((self.slots, float(requests), 1.0 / pace))
        if seconds >= self._even_pace_seconds:
            found.append((self.decode_rate, 1.0 / pace, 1.0 / pace))
        return found

    def _most_even(self, whole: bool) -> Floats | None:
        """The plan whose slower phase is fastest."""
        rows = [self.decode_rate] if self.is_mixed else [self.decode_rate, self.prefill_rate]
        stretched = [np.append(row, -1.0) for row in rows]
        cost = np.append(np.zeros(len(self.options)), -1.0)
        found, _ = self._program(cost, stretched, [0.0] * len(rows), whole)
        return None if found is None else found[:-1]

    def _program(
        self, cost: Floats, rows: Sequence[Floats], least: Sequence[float], whole: bool
    ) -> tuple[Floats | None, float]:
        """Smallest cost with every row's sum at least its limit, and a proven bound of that cost."""
        from scipy.optimize import Bounds, LinearConstraint, milp  # noqa: PLC0415  scipy takes a second to import

        extra = len(cost) - len(self.options)
        used = np.pad(self.used, ((0, 0), (0, extra)))
        available = np.array(list(self.counts.values()), dtype=np.float64)
        fewest = -np.inf if self.catalogue.problem.policy.allow_idle else available
        constraints = [LinearConstraint(used, fewest, available)]
        for row, limit in zip(rows, least, strict=True):
            scale = max(1e-300, float(np.abs(row).max()))
            constraints.append(LinearConstraint(row[None, :] / scale, limit / scale * ENOUGH, np.inf))
        integrality = np.append(np.full(len(self.options), int(whole)), np.zeros(extra))
        # HiGHS writes to stdout when a presolved solution needs repair; nothing else may stand there.
        limits = {"presolve": False, "node_limit": NODE_LIMIT, "mip_rel_gap": 1e-4} if whole else {}
        result = milp(
            cost, integrality=integrality, bounds=Bounds(0, np.inf), constraints=constraints, options=limits
        )
        if result.x is None:
            return None, np.inf if result.status == INFEASIBLE else -np.inf
        found: Floats = np.asarray(result.x)
        if whole:
            found[: len(self.options)] = np.rint(found[: len(self.options)])
        return found, float(result.mip_dual_bound if whole else result.fun)

    def _sums(self, used: Floats) -> tuple[float, float, float]:
        prefill = np.inf if self.is_mixed else float(self.prefill_rate @ used)
        return prefill, float(self.decode_rate @ used), float(self.slots @ used)

    def seconds(self, used: Floats) -> float:
        prefill, decode, slots = self._sums(used)
        if prefill <= 0 or decode <= 0:
            return float(np.inf)
        return float(self.objective.seconds(prefill, decode, slots))

    def load(self, used: Floats) -> float:
        prefill, decode, _ = self._sums(used)
        return float(self.objective.utilisation(prefill, decode))

    def choices(self, used: Floats) -> tuple[Choice, ...]:
        """Devices for every replica: those of one kind are handed out in their order."""
        free: dict[int, list[int]] = {}
        for device, kind in enumerate(self.catalogue.problem.kind_of):
            free.setdefault(kind, []).append(device)
        choices = []
        for column in np.flatnonzero(used > 0.5):
            for _ in range(int(used[column])):
                devices = tuple(sorted(free[kind].pop(0) for kind in self.options[column].group))
                choices.append((devices, self.options[column]))
        return tuple(sorted(choices, key=lambda choice: choice[0]))

"""What a planner minimises: the burst wait (ours), the paper's wait, the finishing time, adapted Splitwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from planner.core.catalogue import Option, OptionTable
from planner.core.congestion import SLOWEST, burst_wait, paper_wait
from planner.core.memory import Floats, Ints
from planner.core.problem import Problem

WAIT, PAPER, FINISHING, SPLITWISE = "wait", "paper", "finishing", "splitwise"
OBJECTIVES = (WAIT, PAPER, FINISHING, SPLITWISE)
QUANTITIES = {  # what a value of each objective is, in seconds
    WAIT: "longest wait by the formula",
    PAPER: "wait by the paper's formula",
    FINISHING: "finishing time by the formula",
    SPLITWISE: "wait by the paper's formula, roles as in Splitwise",
}
SIMULATED_WAIT = "longest wait in the simulation"


@dataclass(frozen=True)
class Objective:
    name: str
    problem: Problem

    @property
    def is_wait(self) -> bool:
        return self.name == WAIT

    def rate(self, option: Option) -> float:
        """What an option adds to its phase: requests/s with hand-over, or the paper's bare speed."""
        return option.requests_per_second if self.is_wait else option.bare_requests_per_second

    def rates(self, table: OptionTable) -> Floats:
        """`rate` of every option of a table."""
        return table.requests_per_second if self.is_wait else table.bare_requests_per_second

    def seconds(self, prefill_rate: ArrayLike, decode_rate: ArrayLike, slots: ArrayLike) -> Floats:
        """The value to minimise, from the summed requests per second of each phase and the decode slots."""
        workload = self.problem.workload
        prompt, answer = workload.input_tokens, workload.output_tokens
        if self.is_wait:
            return burst_wait(prefill_rate, decode_rate, slots, workload)
        if self.name == FINISHING:
            with np.errstate(divide="ignore"):
                return 1.0 / np.asarray(prefill_rate) + 1.0 / np.asarray(decode_rate)
        speeds = (np.asarray(prefill_rate) * prompt, np.asarray(decode_rate) * answer)
        return paper_wait(prompt, answer, *speeds, workload.arrival_seconds)

    def utilisation(self, prefill_rate: ArrayLike, decode_rate: ArrayLike) -> Floats:
        """Load of the busier phase, endless where one has no replica; it ranks plans that keep nobody waiting."""
        slower = np.minimum(prefill_rate, decode_rate)
        served = np.maximum(self.problem.workload.arrival_seconds * slower, SLOWEST)
        return np.where(slower > 0, 1.0 / served, np.inf)

    @property
    def slot_weight(self) -> float:
        """Share of a service time that one more slot saves in the burst formula."""
        return (1.0 + self.problem.workload.output_cv**2) / 2

    def theta(self, seconds: float) -> float:
        """Time in which the burst must be served for the longest wait to be `seconds`."""
        workload = self.problem.workload
        return seconds + (workload.requests - 1) * workload.arrival_seconds

    def value(self, option: Option, theta: float) -> float:
        """An option's share in serving R requests within theta: R - c S <= theta X (burst formula, solved for R)."""
        if not self.is_wait:
            return self.rate(option)
        slots = min(option.slots, self.problem.workload.requests)
        return self.slot_weight * slots + theta * self.rate(option)

    def values(self, slots: Ints, rates: Floats, theta: float) -> Floats:
        """`value` of many options."""
        if not self.is_wait:
            return rates
        return self.slot_weight * np.minimum(slots, self.problem.workload.requests) + theta * rates

    def pick(self, options: Sequence[Option], theta: float) -> Option | None:
        """The option to serve with; the paper's planners take the most slots that hold the floor."""
        if not self.is_wait:
            return options[0] if options else None
        return max(options, key=lambda option: self.value(option, theta), default=None)

    @property
    def first_thetas(self) -> tuple[float, ...]:
        """Weights that leave only the rate, or only the slots: the ends between which the best weight lies."""
        return (1e12, 1e-6) if self.is_wait else (1e12,)

"""The plans of other planners for the same problem, to compare with: each simulated like ours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.core.assembly import Choice
from planner.core.catalogue import Catalogue
from planner.core.evolve import EvolveSettings, Generation, evolve
from planner.core.forecast import Forecast
from planner.core.objective import FINISHING, PAPER, SPLITWISE, WAIT, Objective
from planner.core.roles import Assignment, assign, assign_mixed
from planner.core.slots import MIXED

LABELS = {
    "paper": "The paper's objective",
    "finishing_time": "Shortest finishing time (as HexGen-2)",
    "splitwise": "Adapted Splitwise",
    "one_pipeline": "One pipeline over all devices",
    "single_devices": "Every device for itself",
}
MANY_DEVICES = 16  # past this a comparison is searched for less long
GENETIC = {"paper": PAPER, "finishing_time": FINISHING, "splitwise": SPLITWISE}


@dataclass(frozen=True)
class Baseline:
    name: str
    choices: tuple[Choice, ...]  # empty: this planner finds no plan

    def to_dict(self, told: Forecast | None, curve: Sequence[float], floor: float) -> dict[str, Any]:
        if told is None:
            return {"label": LABELS[self.name], "feasible": False}
        return {
            "label": LABELS[self.name],
            "feasible": True,
            "holds_floor": told.holds(floor),
            "replicas": len(self.choices),
            "max_wait_seconds": told.max_wait_seconds,
            "mean_wait_seconds": told.mean_wait_seconds,
            "p95_wait_seconds": told.p95_wait_seconds,
            "ttft_seconds": told.ttft_seconds,
            "slowest_tokens_per_second": told.slowest_tokens_per_second,
            "wait_curve_seconds": list(curve),
        }


def baselines(catalogue: Catalogue) -> Iterator[Baseline | None]:
    """One after the other, with a None now and then so that the caller can stop in between."""
    for name, objective in GENETIC.items():
        last = None
        for generation in _genetic(catalogue, objective):
            yield None
            last = generation
        assert last is not None, "a search has at least one generation"
        yield Baseline(name, last.best_choices)
    everything = tuple(range(len(catalogue.problem.devices)))
    yield Baseline("one_pipeline", one_pipeline(catalogue, everything))
    yield Baseline("single_devices", single_devices(catalogue, everything))


def _genetic(catalogue: Catalogue, objective: str) -> Iterator[Generation]:
    """The paper's search and layer split with another objective; prefill and decode always apart."""
    settings = comparison_settings(len(catalogue.problem.devices), objective)
    rng = np.random.default_rng(catalogue.problem.policy.seed)
    return evolve(catalogue.problem, settings, rng, catalogue=catalogue)


def comparison_settings(n_devices: int, objective: str) -> EvolveSettings:
    many = n_devices > MANY_DEVICES
    size = {"population": max(6, min(20, 1280 // n_devices)), "generations": 20} if many else {}
    return EvolveSettings(objective=objective, allow_mixed=False, **size)


def one_pipeline(catalogue: Catalogue, devices: tuple[int, ...]) -> tuple[Choice, ...]:
    """One replica over everything, doing both phases, with the slots that serve most."""
    options = catalogue.options(MIXED, catalogue.group_of(devices))
    objective = Objective(WAIT, catalogue.problem)
    best = objective.pick(options, objective.first_thetas[0])
    return ((devices, best),) if best else ()


def single_devices(catalogue: Catalogue, devices: tuple[int, ...]) -> tuple[Choice, ...]:
    """Every device that holds the whole model is a replica of its own, mixed or with roles, whichever waits less."""
    groups = [catalogue.group_of((device,)) for device in devices]
    objective = Objective(WAIT, catalogue.problem)
    tried = (assign_mixed(catalogue, groups, objective), assign(catalogue, groups, objective))
    found: list[Assignment] = [one for one in tried if one is not None]
    if not found:
        return ()
    best = min(found, key=lambda one: one.score)
    pairs = zip(devices, best.options, strict=True)
    return tuple(((device,), option) for device, option in pairs if option is not None)

"""What the plan would be if the inputs were a little different, worked out while the person waits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.core.errors import NoFeasiblePlan
from planner.core.plan import Plan
from planner.core.problem import Problem
from planner.core.search import SearchSettings, SearchStep, search

FULL_SEARCH_DEVICES = 12  # up to 8 it takes a blink, up to here less than a second
QUICK_GENERATIONS = 15

# The newest question of each page that asks, in this process: an older one need not be answered any more.
newest_questions: dict[str, object] = {}


class Superseded(Exception):
    """The page that asked has asked something else since."""


@dataclass(frozen=True)
class WhatIf:
    """A plan for changed inputs, or why there is none."""

    cluster: dict[str, Any]
    plan: Plan | None
    refusal: NoFeasiblePlan | None
    is_quick: bool


def what_if(cluster: dict[str, Any], asker: str = "") -> WhatIf:
    """The best plan that can be found at once; BadDocument when the changes do not make sense.

    Superseded once the same asker, where it has a name, asks again.
    """
    problem = Problem.from_dict(cluster)
    is_quick = len(problem.devices) > FULL_SEARCH_DEVICES
    settings = SearchSettings("ga" if is_quick else "exact", generations=QUICK_GENERATIONS, compare=False)
    try:
        return WhatIf(cluster, searched(problem, settings, asker).best_plan, None, is_quick)
    except NoFeasiblePlan as error:
        return WhatIf(cluster, None, error, is_quick)


def searched(problem: Problem, settings: SearchSettings, asker: str) -> SearchStep:
    """The last step of a search that stops when its asker wants to know something else."""
    question = object()
    newest_questions[asker] = question
    last = None
    try:
        for step in search(problem, settings, np.random.default_rng(problem.policy.seed)):
            last = step
            if asker and newest_questions.get(asker) is not question:
                raise Superseded
    finally:
        if newest_questions.get(asker) is question:
            del newest_questions[asker]
    assert last is not None, "a search ends with a plan or raises"
    return last

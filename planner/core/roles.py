"""Which replica prefills, which decodes, and with how many slots; or every replica does both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.core.catalogue import Catalogue, Option
from planner.core.congestion import Score, mean_queue_seconds
from planner.core.memory import Floats
from planner.core.objective import SPLITWISE, Objective
from planner.core.slots import DECODE, MIXED, PREFILL, Group

EXHAUSTIVE_REPLICAS = 10
NEWTON_STEPS = 40
TIE_SECONDS = 1e-9


@dataclass(frozen=True)
class Assignment:
    """A role (an option) for each replica, or None where it stands idle, and the value of the whole."""

    options: tuple[Option | None, ...]
    seconds: float
    score: Score

    @property
    def used(self) -> list[Option]:
        return [option for option in self.options if option is not None]


def assign(catalogue: Catalogue, groups: Sequence[Group], objective: Objective) -> Assignment | None:
    """The best assignment of roles to these replicas, prefill and decode apart; None when none is possible."""
    prefill = [catalogue.prefill(group) for group in groups]
    decode = [catalogue.options(DECODE, group) for group in groups]
    if objective.name == SPLITWISE:
        masks = _splitwise_masks(prefill, objective)
    elif len(groups) <= EXHAUSTIVE_REPLICAS:
        masks = _all_masks(len(groups))
    else:
        masks = _ratio_masks(prefill, decode, objective)
    return _best_mask(masks, prefill, decode, objective)


def assign_mixed(catalogue: Catalogue, groups: Sequence[Group], objective: Objective) -> Assignment | None:
    """Every replica serves both phases, each with the slots that suit the whole best."""
    lists = [catalogue.options(MIXED, group) for group in groups]
    if not any(lists):
        return None
    nobody = np.zeros((1, len(groups)), dtype=bool)
    return _best_mask(nobody, [None] * len(groups), lists, objective)


def _all_masks(n_replicas: int) -> np.ndarray:
    """Every set of prefill replicas: [mask, replica] -> bool."""
    numbers = np.arange(1 << n_replicas)[:, None]
    return (numbers >> np.arange(n_replicas)[None, :]) & 1 == 1


def _splitwise_masks(prefill: Sequence[Option | None], objective: Objective) -> np.ndarray:
    """Adapted Splitwise: the strongest replicas prefill, as many as the share of input tokens asks for."""
    workload = objective.problem.workload
    share = workload.input_tokens / (workload.input_tokens + workload.output_tokens)
    wanted = min(max(1, round(len(prefill) * share)), max(1, len(prefill) - 1))
    speed = np.array([objective.rate(option) if option else 0.0 for option in prefill])
    mask = np.zeros((1, len(prefill)), dtype=bool)
    mask[0, np.argsort(-speed, kind="stable")[:wanted]] = True
    return mask


def _ratio_masks(
    prefill: Sequence[Option | None], decode: Sequence[tuple[Option, ...]], objective: Objective
) -> np.ndarray:
    """Past ten replicas: prefill goes to the k that gain most by it, for every k, or to any single one."""
    p = np.array([objective.rate(option) if option else 0.0 for option in prefill])
    d = np.array([max((objective.rate(option) for option in options), default=0.0) for options in decode])
    with np.errstate(over="ignore"):
        gain = np.where(p > 0, p / np.where(d > 0, d, np.finfo(float).tiny), -1.0)
    order = np.argsort(-gain, kind="stable")
    rank = np.empty(len(p), dtype=np.int64)
    rank[order] = np.arange(len(p))
    prefixes = rank[None, :] < np.arange(1, len(p) + 1)[:, None]
    singles = np.eye(len(p), dtype=bool)
    return np.unique(np.concatenate([prefixes, singles]), axis=0)


def _best_mask(
    masks: np.ndarray,
    prefill: Sequence[Option | None],
    decode: Sequence[tuple[Option, ...]],
    objective: Objective,
) -> Assignment | None:
    """Newton steps on the wait: decode options are chosen for the wait reached so far until nothing improves."""
    is_mixed = all(option is None for option in prefill)
    rates = np.array([objective.rate(option) if option else 0.0 for option in prefill])
    prefill_rate = np.full(len(masks), np.inf) if is_mixed else masks @ rates
    best: Assignment | None = None

    def attempt(theta: float) -> bool:
        nonlocal best
        chosen = [objective.pick(options, theta) for options in decode]
        found = _rank_masks(masks, prefill_rate, chosen, objective)
        if found is None or (best is not None and found[1] >= best.seconds - TIE_SECONDS):
            return False
        row, seconds = found
        options = tuple(prefill[k] if masks[row, k] else chosen[k] for k in range(len(decode)))
        best = Assignment(options, seconds, score(options, seconds, objective))
        return True

    for theta in objective.first_thetas:
        attempt(theta)
    for _ in range(NEWTON_STEPS):
        if (
            best is None
            or not objective.is_wait
            or best.seconds <= 0
            or not attempt(objective.theta(best.seconds))
        ):
            break
    return best


def _rank_masks(
    masks: np.ndarray, prefill_rate: Floats, chosen: Sequence[Option | None], objective: Objective
) -> tuple[int, float] | None:
    decode_rates = np.array([objective.rate(option) if option else 0.0 for option in chosen])
    slots = np.array([option.slots if option else 0 for option in chosen])
    decode_rate, total_slots = ~masks @ decode_rates, ~masks @ slots
    possible = (prefill_rate > 0) & (decode_rate > 0)
    if not possible.any():
        return None
    seconds = np.where(possible, objective.seconds(prefill_rate, decode_rate, total_slots), np.inf)
    least = seconds.min()
    load = np.where(seconds <= least + TIE_SECONDS, objective.utilisation(prefill_rate, decode_rate), np.inf)
    row = int(load.argmin())
    return row, float(seconds[row])


def score(options: Sequence[Option | None], seconds: float, objective: Objective) -> Score:
    """The plan's place in the ranking: the wait first, then load, steady-state queue, TTFT and devices used."""
    used = [option for option in options if option is not None]
    workload = objective.problem.workload
    poisson = workload.arrivals == "poisson"
    rate = 1.0 / workload.arrival_seconds
    prefill = [option for option in used if option.role == PREFILL]
    serving = [option for option in used if option.role != PREFILL]
    x_d, slots = (
        sum(option.requests_per_second for option in serving),
        sum(option.slots for option in serving),
    )
    queue = mean_queue_seconds(rate, slots, x_d, workload.output_cv, poisson)
    load = rate / x_d
    if prefill:
        x_p = sum(option.requests_per_second for option in prefill)
        queue += mean_queue_seconds(rate, len(prefill), x_p, workload.input_cv, poisson)
        load = max(load, rate / x_p)
    first = prefill or serving
    weight = sum(option.requests_per_second for option in first)
    ttft = sum(
        option.requests_per_second * (option.prefill_seconds + option.handover_seconds) for option in first
    )
    devices = sum(len(option.group) for option in used)
    return Score(round(seconds, 9), round(load, 9), round(queue, 9), round(ttft / weight, 9), devices)

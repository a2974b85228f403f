"""What groups of devices can do with their best splits: rates, and the pace of each request."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.core.latency import PREFILL_PIECE_TOKENS
from planner.core.memory import Floats, Ints
from planner.core.problem import Problem
from planner.core.slots import DECODE, PREFILL, Gathered, RolePoints, Splits, chosen

SHORT_ANSWER_SIGMAS = 2.5  # a mixed replica must hold the floor for answers this much shorter than the mean


@dataclass(frozen=True)
class Figures:
    """[group, operating point]: requests a second, seconds of a token, of a prompt and of one decode pass."""

    rate: Floats
    tpot: Floats
    prompt: Floats
    pass_seconds: Floats


def figures(problem: Problem, points: RolePoints, splits: Splits, gathered: Gathered) -> Figures:
    serial = problem.policy.runtime == "serial"
    if points.role == PREFILL:
        seconds = splits.pass_seconds if serial else splits.bottleneck_seconds
        return Figures(1.0 / seconds, np.zeros(seconds.shape), splits.pass_seconds, splits.pass_seconds)
    if points.role == DECODE:
        tpot = step_seconds(splits.pass_seconds, splits.bottleneck_seconds, gathered.size, serial)
        rates = points.slots / (problem.workload.output_tokens * tpot)
        return Figures(rates, tpot, np.zeros(tpot.shape), splits.pass_seconds)
    return _mixed(problem, points, splits, gathered)


def step_seconds(whole: Floats, slowest: Floats, n_devices: int, serial: bool) -> Floats:
    """Seconds between two tokens of one request: the pass, or the pipeline's round when stages overlap."""
    return whole if serial else np.maximum(whole, n_devices * slowest)


def shortest_answer(problem: Problem) -> float:
    """Tokens of an unusually short answer under the workload's spread (lognormal)."""
    workload = problem.workload
    sigma = float(np.sqrt(np.log1p(workload.output_cv**2)))
    return max(1.0, workload.output_tokens * float(np.exp(-SHORT_ANSWER_SIGMAS * sigma - sigma**2 / 2)))


def stall_seconds(problem: Problem, slots: Ints, prompt_seconds: Floats) -> Floats:
    """What prompts of the other slots add to each token, at worst: pieces of them run between two steps."""
    piece = prompt_seconds * min(1.0, PREFILL_PIECE_TOKENS / problem.workload.input_tokens)
    return np.minimum((slots - 1) * prompt_seconds / shortest_answer(problem), piece)


def _mixed(problem: Problem, points: RolePoints, splits: Splits, gathered: Gathered) -> Figures:
    """Replicas that do both phases: their tokens come at the worst pace that prompts of others leave."""
    serial = problem.policy.runtime == "serial"
    group, point = np.nonzero(np.isfinite(splits.pass_seconds))
    rows = chosen(splits, group, point)
    phases = []
    for seconds, hop in (
        (points.decode_seconds, points.decode_hop),
        (points.prompt_seconds, points.prompt_hop),
    ):
        stages = gathered.stage_rows(seconds, rows)
        hops, slowest_hop = gathered.hop_rows(hop, rows)
        phases.append((stages.sum(axis=1) + hops, np.maximum(stages.max(axis=1), slowest_hop)))
    (step_whole, step_slowest), (prompt_whole, prompt_slowest) = phases
    slots, tokens = points.slots[point], problem.workload.output_tokens
    step = step_seconds(step_whole, step_slowest, gathered.size, serial)
    stall = prompt_whole if serial else prompt_slowest
    busy = (splits.pass_seconds if serial else splits.bottleneck_seconds)[group, point]
    lived = (prompt_whole + tokens * step + (slots - 1) * stall) / slots
    found = Figures(*(np.full(splits.pass_seconds.shape, np.inf) for _ in range(4)))
    found.rate[group, point] = 1.0 / np.maximum(busy, lived)
    found.tpot[group, point] = step + stall_seconds(problem, slots, stall)
    found.prompt[group, point] = prompt_whole
    found.pass_seconds[group, point] = step_whole
    return found

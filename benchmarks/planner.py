"""How fast and how good the planner is: times beside what they are compared with in the same run.

python -m benchmarks.planner [--quick] [--write docs/results.md]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import TypeVar

import numpy as np

from benchmarks import report
from benchmarks.fleets import GPT_OSS, QWEN, distinct, loaded, of_five_kinds, with_policy
from planner.core import columns, exact
from planner.core.assembly import Choice
from planner.core.burst import sample
from planner.core.catalogue import Catalogue
from planner.core.evolve import EvolveSettings, Generation, evolve
from planner.core.neighbourhood import improve
from planner.core.objective import PAPER, WAIT, Objective
from planner.core.partition import paper_dp, select, selection_rule
from planner.core.problem import Problem
from planner.core.search import SearchSettings, find_plan
from planner.core.servers import servers
from planner.core.simulate import simulate

MODELS = (GPT_OSS, QWEN)
BURST = (100, 0.5)
LONG_BURST = (2000, 0.02)
GENERATION_BURST = (2500, 0.02)  # more requests than 64 devices have slots

Result = TypeVar("Result")


@dataclass(frozen=True)
class Line:
    what: str
    reached: str
    compared: str


def timed(work: Callable[[], object]) -> float:
    """CPU seconds of this process: other work on the machine does not count."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def problem(model: str, n_devices: int, seed: int, *, allow_mixed: bool = False) -> Problem:
    return loaded(with_policy(distinct(model, n_devices, seed), "serial", allow_mixed=allow_mixed), *BURST)


def run_exact(cluster: Problem, name: str = WAIT) -> float:
    *_, last = exact.solve(Catalogue(cluster), Objective(name, cluster), cluster.policy.allow_mixed)
    return last.plans[0].seconds


def run_genetic(cluster: Problem, name: str = WAIT) -> Generation:
    settings = EvolveSettings(objective=name, allow_mixed=cluster.policy.allow_mixed)
    *_, last = evolve(cluster, settings, np.random.default_rng(0))
    return last


def exact_lines(repeats: int) -> Iterator[Line]:
    for mixed in (False, True):
        clusters = [problem(model, 8, seed, allow_mixed=mixed) for seed in range(repeats) for model in MODELS]
        exact_seconds = median(timed(partial(run_exact, cluster)) for cluster in clusters)
        genetic_seconds = median(timed(partial(run_genetic, cluster)) for cluster in clusters)
        kind = "phases apart and mixed replicas" if mixed else "phases apart"
        yield Line(
            f"exact, 8 different devices, {kind}, cold",
            f"{exact_seconds * 1e3:.0f} ms (median of {len(clusters)})",
            f"genetic search of the same clusters {genetic_seconds * 1e3:.0f} ms",
        )
    seconds = [timed(partial(run_exact, problem(model, 16, 1))) for model in MODELS]
    yield Line(
        "exact, 16 different devices, replicas of at most 4, cold", f"{max(seconds):.2f} s", "goal 2 s"
    )


def genetic_lines(repeats: int) -> Iterator[Line]:
    clusters = [problem(model, 8, seed) for seed in range(repeats) for model in MODELS]
    seconds = median(timed(partial(run_genetic, cluster, PAPER)) for cluster in clusters)
    yield Line(
        "the paper's search, 40 x 60, 8 different devices, cold", f"{seconds * 1e3:.0f} ms", "goal 500 ms"
    )
    for n in (4, 6, 8):
        gaps, local = [], []
        for seed in range(repeats):
            cluster = problem(QWEN, n, seed)
            best = run_exact(cluster)
            last = run_genetic(cluster)
            assert last.best_seconds is not None, "these clusters have plans"
            gaps.append((last.best_seconds - best) / best if best else 0.0)
            local.append((climb(cluster, last.best_choices) - best) / best if best else 0.0)
        yield Line(
            f"genetic search against the optimum, {n} different devices",
            f"mean gap {np.mean(gaps):.2%}, worst {max(gaps):.2%}",
            f"with local search from its best: mean {np.mean(local):.2%}, worst {max(local):.2%}",
        )


def climb(cluster: Problem, start: tuple[Choice, ...], tries: int = 20_000) -> float:
    *_, last = improve(Catalogue(cluster), Objective(WAIT, cluster), start, np.random.default_rng(0), tries)
    return last.seconds


def large_lines() -> Iterator[Line]:
    scipy_seconds = timed(lambda: __import__("scipy.optimize"))
    for model in MODELS:
        few = loaded(with_policy(of_five_kinds(model, 64), "serial", allow_mixed=False), *LONG_BURST)
        begin = time.process_time()
        *_, last = columns.solve(Catalogue(few), Objective(WAIT, few), False)
        seconds = time.process_time() - begin
        assert last.seconds is not None and last.bound_seconds is not None, "this fleet has plans"
        gap = last.seconds / last.bound_seconds - 1
        yield Line(
            f"64 devices of 5 kinds, {model}",
            f"{seconds:.2f} s, within {gap:.3%} of the bound",
            f"loading scipy {scipy_seconds:.2f} s; goal 0.5 s and 0.1 %",
        )


def different_lines() -> Iterator[Line]:
    for model in MODELS:
        cluster = loaded(with_policy(distinct(model, 64, 0), "serial", allow_mixed=False), *GENERATION_BURST)
        begin = time.process_time()
        catalogue, objective, rng = Catalogue(cluster), Objective(WAIT, cluster), np.random.default_rng(0)
        short = EvolveSettings(population=20, generations=10, allow_mixed=False)
        *_, first = evolve(cluster, short, rng, catalogue=catalogue)
        *_, second = improve(catalogue, objective, first.best_choices, rng, 40_000)
        *_, third = columns.generate(catalogue, objective, [second.choices], False)
        *_, last = improve(catalogue, objective, third.choices or second.choices, rng, 40_000)
        seconds = time.process_time() - begin
        best = min(second.seconds, last.seconds)
        assert third.bound_seconds is not None and first.best_seconds is not None, (
            "this fleet has plans and a bound"
        )
        yield Line(
            f"64 different devices, {model}",
            f"gap {best / third.bound_seconds - 1:.2%} in {seconds:.0f} s "
            f"(bound for replicas of up to {columns.enumerable_size(catalogue)} devices)",
            f"local search alone {second.seconds / third.bound_seconds - 1:.1%}, "
            f"genetic search (20 x 10) {first.best_seconds / third.bound_seconds - 1:.0%}",
        )


def split_lines(repeats: int) -> Iterator[Line]:
    rng = np.random.default_rng(0)
    n_blocks, n_devices, n_points = 48, 8, 32
    steps = rng.uniform(0.001, 0.01, (repeats, n_points, n_devices, n_blocks))
    workers = np.pad(np.cumsum(steps, axis=3), ((0, 0), (0, 0), (0, 0), (1, 0)))
    masters = workers + rng.uniform(0.0, 0.02, (repeats, n_points, n_devices, 1))
    hops = [0.0005] * (n_devices - 1)
    floor = np.full(n_points, hops[0])
    dp, splits = collected(lambda k: paper_dp(workers[k, 0], masters[k, 0], hops), repeats)
    rule, same = collected(lambda k: selection_rule(workers[k, 0], masters[k, 0], hops), repeats)
    scan, _ = collected(lambda k: select(workers[k], masters[k], floor), repeats)
    equal = all(
        a and b and a.bottleneck_seconds == b.bottleneck_seconds for a, b in zip(splits, same, strict=True)
    )
    told = f"the paper's DP {dp * 1e3:.1f} ms"
    yield Line(
        f"selection rule, {n_devices} devices x {n_blocks} blocks, one split",
        f"{rule * 1e6:.0f} us, bottleneck equal to the DP's in {'all' if equal else 'not all'} of {repeats}",
        f"{told}: {dp / rule:.0f} times as long",
    )
    yield Line(
        f"selection rule, a scan of {n_points} micro-batches, each split",
        f"{scan / n_points * 1e6:.0f} us",
        f"{told}: {dp / scan * n_points:.0f} times as long",
    )


def collected(work: Callable[[int], Result], repeats: int) -> tuple[float, list[Result]]:
    """Mean CPU seconds of one call after a first one that warms up, and the results."""
    work(0)
    results: list[Result] = []
    seconds = timed(lambda: results.extend(work(k) for k in range(repeats)))
    return seconds / repeats, results


def simulator_line(requests: int) -> Line:
    cluster = problem(QWEN, 8, 0)
    plan = find_plan(cluster, SearchSettings(compare=False, generations=5))
    long = replace(cluster.workload, requests=requests)
    drawn, fleet = sample(long, np.random.default_rng(0)), servers(cluster, plan)
    begin = time.process_time()
    told = simulate(fleet, drawn)
    seconds = time.process_time() - begin
    rate = told.events / seconds
    return Line(
        f"simulator, {requests:,} requests", f"{rate:,.0f} request events/s", f"{seconds:.2f} s; goal 200,000"
    )


def table(lines: list[Line]) -> str:
    rows = [f"| {line.what} | {line.reached} | {line.compared} |" for line in lines]
    return "\n".join(["| what | reached | compared with |", "|---|---|---|", *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few repetitions, to see that it runs")
    parser.add_argument("--write", type=Path, help="put the table into this file's planner part")
    options = parser.parse_args()
    repeats = 2 if options.quick else 10
    lines = [
        *exact_lines(repeats),
        *genetic_lines(repeats),
        *large_lines(),
        *different_lines(),
        *split_lines(5 * repeats),
        simulator_line(2_000 if options.quick else 50_000),
    ]
    text = table(lines)
    print(text)
    if options.write:
        report.write_part(options.write, "planner", text)


if __name__ == "__main__":
    main()

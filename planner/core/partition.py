"""Layer split inside one replica: the paper's dynamic program, the selection rule, and the minimum-sum split.

Stage costs come as arrays over n, the number of consecutive blocks on a device; every device takes at least one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.core.memory import Floats, Ints


@dataclass(frozen=True)
class Split:
    """Blocks for each device in pipeline order, and what that costs."""

    counts: tuple[int, ...]
    master: int
    bottleneck_seconds: float
    pass_seconds: float


def paper_dp(workers: Floats, masters: Floats, hops: Sequence[float]) -> Split | None:
    """Algorithm 1: smallest bottleneck for a fixed order, every master tried, O(M^2 N^2).

    `workers[k, n]` and `masters[k, n]` are seconds; `hops[k - 1]` crosses from device k - 1 to device k.
    """
    best: Split | None = None
    for master in range(len(workers)):
        stages = [masters[k] if k == master else workers[k] for k in range(len(workers))]
        found = _dp_for_master(stages, hops, master)
        if found and (best is None or found.bottleneck_seconds < best.bottleneck_seconds):
            best = found
    return best


def _dp_for_master(stages: list[Floats], hops: Sequence[float], master: int) -> Split | None:
    n_blocks, n_devices = len(stages[0]) - 1, len(stages)
    costs = [stage.tolist() for stage in stages]
    infinite = float("inf")
    best = [[infinite] * (n_blocks + 1) for _ in range(n_devices)]  # [device][blocks placed] -> seconds
    taken = [[0] * (n_blocks + 1) for _ in range(n_devices)]
    best[0] = [infinite, *costs[0][1:]]
    taken[0] = list(range(n_blocks + 1))
    for k in range(1, n_devices):
        before, cost, hop = best[k - 1], costs[k], hops[k - 1]
        for i in range(k + 1, n_blocks + 1):
            for j in range(k, i):
                seconds = max(before[j], cost[i - j], hop)
                if seconds < best[k][i]:
                    best[k][i], taken[k][i] = seconds, i - j
    if best[-1][n_blocks] == infinite:
        return None
    counts = _back_track(taken, n_blocks)
    total = sum(cost[n] for cost, n in zip(costs, counts, strict=True)) + sum(hops)
    return Split(counts, master, best[-1][n_blocks], total)


def _back_track(taken: list[list[int]], n_blocks: int) -> tuple[int, ...]:
    counts = []
    for row in reversed(taken):
        counts.append(row[n_blocks])
        n_blocks -= counts[-1]
    return tuple(reversed(counts))


@dataclass(frozen=True)
class Selection:
    """Bottleneck-optimal splits for many operating points at once: [operating point] and [point, device]."""

    bottleneck_seconds: Floats
    pass_seconds: Floats
    master: Ints
    counts: Ints


def select(workers: Floats, masters: Floats, hop_floor: Floats) -> Selection:
    """The selection rule for arrays [point, device, n]; stage costs must not fall as n grows.

    T* = max(N-th smallest of all t_k(n), max_k t_k(1), slowest hop); then the caps are trimmed to N blocks,
    keeping the cheapest next blocks, so that the pass stays short.
    """
    n_points, n_devices, width = workers.shape
    n_blocks = width - 1
    diagonal = np.arange(n_devices)
    is_master = (diagonal[:, None] == diagonal)[..., None]
    # Axes: point, master, device, n - 1.
    stages = np.where(is_master, masters[:, None, :, 1:], workers[:, None, :, 1:])
    flat = stages.reshape(n_points, n_devices, -1)
    nth = np.partition(flat, n_blocks - 1, axis=2)[..., n_blocks - 1]
    slowest = np.maximum(np.maximum(nth, stages[..., 0].max(axis=2)), hop_floor[:, None])
    bottleneck = slowest.min(axis=1)
    # Only masters that reach the bottleneck are split; among them the shortest pass wins, then the first.
    point, master = ((slowest == bottleneck[:, None]) & np.isfinite(slowest)).nonzero()
    able = stages[point, master]
    counts = _trim(able, bottleneck[point])
    passes = able[np.arange(len(able))[:, None], diagonal, counts - 1].sum(axis=1)
    best = np.lexsort((master, passes, point))
    is_first = np.ones(len(best), dtype=bool)
    is_first[1:] = point[best[1:]] != point[best[:-1]]
    best = best[is_first]
    found = Selection(
        bottleneck,
        np.full(n_points, np.inf),
        np.zeros(n_points, dtype=np.int64),
        np.zeros((n_points, n_devices), dtype=np.int64),
    )
    reached = point[best]
    found.pass_seconds[reached] = passes[best]
    found.master[reached] = master[best]
    found.counts[reached] = counts[best]
    return found


def _trim(stages: Floats, bottleneck: Floats) -> Ints:
    """Blocks per device under the bottleneck: one each, then the N - M cheapest further ones; [row, device, n - 1]."""
    n_rows, n_devices, n_blocks = stages.shape
    extra = n_blocks - n_devices
    if extra == 0 or not n_rows:
        return np.ones((n_rows, n_devices), dtype=np.int64)
    is_over = stages[..., 1:] > bottleneck[:, None, None]
    further = np.where(is_over, np.inf, stages[..., 1:]) - np.where(is_over, 0.0, stages[..., :-1])
    cheapest = further.reshape(n_rows, -1).argpartition(extra - 1, axis=1)[:, :extra]
    device = cheapest // (n_blocks - 1) + np.arange(0, n_rows * n_devices, n_devices)[:, None]
    return 1 + np.bincount(device.reshape(-1), minlength=n_rows * n_devices).reshape(n_rows, n_devices)


def selection_rule(workers: Floats, masters: Floats, hops: Sequence[float]) -> Split | None:
    """The selection rule for one operating point: [device, n]."""
    if len(workers) > workers.shape[1] - 1:
        return None
    floor = np.array([max(hops, default=0.0)])
    found = select(workers[None], masters[None], floor)
    if not np.isfinite(found.bottleneck_seconds[0]):
        return None
    counts = tuple(int(n) for n in found.counts[0])
    total = float(found.pass_seconds[0]) + sum(hops)
    return Split(counts, int(found.master[0]), float(found.bottleneck_seconds[0]), total)


def min_plus(left: Floats, right: Floats) -> tuple[Floats, NDArray[np.int16]]:
    """Cheapest way to share n blocks between two parties, for every n, and how many then lie on the right.

    [point, n] each; the right one takes at least one.
    """
    n_points, width = left.shape
    padded = np.full((n_points, 2 * width - 1), np.inf)
    padded[:, width - 1 :] = left
    # The last axis counts what lies on the right backwards, from all of n to none.
    windows = np.lib.stride_tricks.sliding_window_view(padded, width, axis=1)
    backwards = right[:, ::-1].copy()
    backwards[:, -1] = np.inf
    sums = windows + backwards[:, None, :]
    best = sums.argmin(axis=2)  # twice as fast as the minimum itself
    least = sums.reshape(-1)[np.arange(n_points * width) * width + best.reshape(-1)].reshape(best.shape)
    return least, (width - 1 - best).astype(np.int16)


def minimum_sum(workers: Floats, masters: Floats) -> Split | None:
    """Split with the shortest pass for one operating point: [device, n]; exact for any stage costs."""
    best: Split | None = None
    for master in range(len(workers)):
        stages = [masters[k] if k == master else workers[k] for k in range(len(workers))]
        chain = [np.where(np.arange(workers.shape[1]) == 0, 0.0, np.inf)[None]]
        for stage in stages:
            chain.append(min_plus(chain[-1], stage[None])[0])
        total = float(chain[-1][0, -1])
        if np.isfinite(total) and (best is None or total < best.pass_seconds):
            counts = _walk_back(chain, stages)
            slowest = max(float(stage[n]) for stage, n in zip(stages, counts, strict=True))
            best = Split(counts, master, slowest, total)
    return best


def _walk_back(chain: list[Floats], stages: list[Floats]) -> tuple[int, ...]:
    left = chain[0].shape[1] - 1
    counts = []
    for k in range(len(stages) - 1, -1, -1):
        options = chain[k][0, left - 1 :: -1][:left] + stages[k][1 : left + 1]
        counts.append(int(np.argmin(options)) + 1)
        left -= counts[-1]
    return tuple(reversed(counts))

"""Two chromosomes of an individual: the order of the devices and the sizes of the replicas (paper, section 3.4)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

MUTATION_RATE = 0.3
SWAP, REGROUP_TAIL, REGROUP_ALL = (
    0.20,
    0.70,
    0.85,
)  # cumulative shares: swap 20, from a position 50, all 15, both 15


@dataclass(frozen=True)
class Genome:
    """E.g. order (0,1,2,3,4,5) and sizes (3,1,2): replicas {0,1,2}, {3} and {4,5}."""

    order: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Devices of each replica, in a form equal for genomes that mean the same."""
        groups = []
        start = 0
        for size in self.sizes:
            groups.append(tuple(sorted(self.order[start : start + size])))
            start += size
        return tuple(sorted(groups))

    @classmethod
    def from_groups(cls, groups: tuple[tuple[int, ...], ...]) -> Genome:
        return cls(
            tuple(device for group in groups for device in group), tuple(len(group) for group in groups)
        )


def random_sizes(n_devices: int, rng: np.random.Generator) -> tuple[int, ...]:
    """Replica sizes that add up to the devices: each gap between neighbours is a border with chance one half."""
    if n_devices == 0:
        return ()
    borders = np.flatnonzero(rng.random(n_devices - 1) < 0.5) + 1
    return tuple(int(size) for size in np.diff(np.concatenate([[0], borders, [n_devices]])))


def random_genome(n_devices: int, rng: np.random.Generator) -> Genome:
    order = tuple(int(device) for device in rng.permutation(n_devices))
    return Genome(order, random_sizes(n_devices, rng))


def crossover(first: Genome, second: Genome, rng: np.random.Generator) -> Genome:
    """Order of both parents up to and from a cut, repaired; the grouping of one of them."""
    cut = int(rng.integers(0, len(first.order) + 1))
    mixed = first.order[:cut] + second.order[cut:]
    sizes = first.sizes if rng.random() < 0.5 else second.sizes
    return Genome(repair(mixed), sizes)


def repair(order: tuple[int, ...]) -> tuple[int, ...]:
    """Every second appearance of a device is replaced by a missing one, lowest first."""
    missing = iter(sorted(set(range(len(order))) - set(order)))
    seen: set[int] = set()
    repaired = []
    for device in order:
        repaired.append(next(missing) if device in seen else device)
        seen.add(device)
    return tuple(repaired)


def mutate(genome: Genome, rng: np.random.Generator) -> Genome:
    """With chance 0.3: swap two devices, regroup from a position on, regroup all, or draw both anew."""
    if rng.random() >= MUTATION_RATE:
        return genome
    n = len(genome.order)
    kind = rng.random()
    if kind < SWAP:
        a, b = (int(k) for k in rng.integers(0, n, size=2))
        order = list(genome.order)
        order[a], order[b] = order[b], order[a]
        return Genome(tuple(order), genome.sizes)
    if kind < REGROUP_TAIL:
        kept = int(rng.integers(0, len(genome.sizes)))
        head = genome.sizes[:kept]
        return Genome(genome.order, head + random_sizes(n - sum(head), rng))
    if kind < REGROUP_ALL:
        return Genome(genome.order, random_sizes(n, rng))
    return random_genome(n, rng)

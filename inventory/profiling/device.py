"""Times one model on one device: slices put there, servers started, rounds timed, everything removed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from inventory.core.gguf import GgufError
from inventory.core.model_shape import ModelShape
from inventory.core.profile import DECODE, DEEP, PREFILL, Timing, cell_seconds
from inventory.core.slices import SlicePlan, first_blocks, plan_slice, slice_depths, write_slice
from inventory.library import Inspected
from inventory.models import Device
from inventory.probe import free_port
from inventory.profiling.bench import (
    Station,
    put_hollow,
    put_real,
    stations,
    time_round,
    warm_up,
)
from inventory.profiling.held import held, make_folder
from inventory.profiling.launches import benches, launches_for, refuse_unusable
from inventory.profiling.settings import FEWEST_ROUNDS, Grid
from inventory.remote import Connection, RemoteError, connect

MIN_FREE_DISK_BYTES = 64 * 1024 * 1024

Report = Callable[[str, float, float | None], None]


@dataclass(frozen=True)
class Material:
    """The model's headers, and where its files lie: on devices by their id, and perhaps in the library."""

    inspected: Inspected
    shards_by_device: dict[int, tuple[str, ...]]
    library_shards: tuple[Path, ...] | None

    @property
    def shape(self) -> ModelShape:
        return self.inspected.shape


async def time_device(device: Device, material: Material, grid: Grid, report: Report) -> list[Timing]:
    """Every timing of the grid; the host is left as it was found, also after an error or a cancel."""
    refuse_unusable(device)
    grid = grid.within(material.shape.context_train)
    async with connect(device) as connection:
        folder = await make_folder(connection, device.hardware["home"])
        try:
            async with held(connection, folder) as start:
                report("Sending slices of the model", 0.0, None)
                files = await _put_slices(connection, device, folder, material, grid)
                ports = await _free_ports(connection, len(files) * len(benches(device, material.shape)))
                launches = launches_for(device, material.shape, grid, files, ports)
                report("Starting llama-server on the slices", 0.05, None)
                vocabulary = material.shape.vocabulary
                async with stations(connection, folder, launches, vocabulary, start) as ready:
                    return await _rounds(ready, grid, report)
        finally:
            await asyncio.shield(connection.remove([folder]))


async def _free_ports(connection: Connection, count: int) -> list[int]:
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(await free_port(connection, frozenset(ports)))
    return sorted(ports)


async def _put_slices(
    connection: Connection, device: Device, folder: str, material: Material, grid: Grid
) -> dict[int, str]:
    """Depth in blocks -> path of its slice on the device."""
    shape = material.shape
    files = {}
    for depth in slice_depths(shape.period_blocks, len(shape.blocks), grid.depths):
        plan = plan_slice(
            material.inspected.headers, material.inspected.beginning, first_blocks(depth, len(shape.blocks))
        )
        path = f"{folder}/{depth}.gguf"
        if shape.is_moe:
            await _put_weights(connection, device, path, plan, material)
        else:
            await put_hollow(connection, path, plan)
        files[depth] = path
    return files


async def _put_weights(
    connection: Connection, device: Device, path: str, plan: SlicePlan, material: Material
) -> None:
    """Experts are chosen by real weights: with zeros the prompt timing of such a model was 19 % off."""
    shards = material.shards_by_device.get(device.pk)
    if shards is not None:
        await put_real(connection, path, plan, shards)
    elif material.library_shards is not None:
        await _send_weights(connection, path, plan, material.library_shards)
    else:
        raise RemoteError(
            f"A model with experts is timed with real weights, and {device.name} does not hold the file. "
            "Put it into the server's library or copy it to the device, and look for models again."
        )


async def _send_weights(connection: Connection, path: str, plan: SlicePlan, shards: tuple[Path, ...]) -> None:
    with TemporaryDirectory(prefix="e2llm-slice-") as folder:
        local = Path(folder) / "slice.gguf"
        sources = [shard.open("rb") for shard in shards]
        try:
            with local.open("wb") as sink:
                write_slice(plan, sources, sink)
        finally:
            for source in sources:
                source.close()
        await connection.write_file(path, local)


async def _rounds(ready: list[Station], grid: Grid, report: Report) -> list[Timing]:
    """Depths in turn within each round, so that a slow minute of the host hits all of them alike."""
    for station in ready:
        await warm_up(station, grid)
    timings: list[Timing] = []
    began = perf_counter()
    cells = len(ready) * grid.cells
    done_cells = 0

    def done() -> None:
        nonlocal done_cells
        done_cells += 1
        cell_seconds = (perf_counter() - began) / done_cells
        expected_cells = grid.expected_rounds(cell_seconds * cells) * cells
        share = 0.1 + 0.9 * min(done_cells / expected_cells, 1.0)
        rest = max(expected_cells - done_cells, 0) * cell_seconds
        # Cells differ much, so that a part of the first round says little about the rest.
        report(f"Timing, round {done_cells // cells + 1}", share, rest if done_cells >= cells else None)

    for number in range(grid.max_rounds):
        for station in ready:
            timings += await time_round(station, grid, number, done)
        spent = perf_counter() - began
        enough = number + 1 >= grid.min_rounds and _agrees(timings, grid.wanted_spread)
        if enough or (number + 1 >= FEWEST_ROUNDS and spent > grid.budget_seconds):
            break
    if not timings:
        raise GgufError("nothing was timed")
    return timings


def _agrees(timings: list[Timing], wanted_spread: float) -> bool:
    """Whether the rounds lie close together: the mean distance from each cell's value."""
    pools = {timing.pool for timing in timings}
    distances = []
    for pool in pools:
        for phase in (DECODE, DEEP, PREFILL):
            chosen = [timing for timing in timings if timing.pool == pool and timing.phase == phase]
            middle = cell_seconds(chosen)
            distances += [abs(t.seconds / middle[t.size, t.blocks] - 1) for t in chosen]
    return sum(distances) / len(distances) < wanted_spread

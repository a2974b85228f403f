"""A profile made from slices of 2, 4 and 8 blocks beside the whole model, both measured in the same rounds.

    python -m benchmarks.profiles --llama-folder FOLDER --model GGUF [--rounds N] [--write docs/results.md]

The device is one thread of this machine's CPU. Rounds are interleaved, so other work on the machine hits all depths
alike. A prompt through the whole model lasts seconds and cannot dodge that work as a slice of milliseconds can, so the
servers come before all others where this user may say so.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import django

from benchmarks import report
from inventory.core.profile import DECODE, DEEP, PREFILL, Timing, at_depth, cell_seconds, fit, predict
from inventory.core.quantities import seconds_text

if TYPE_CHECKING:
    from inventory.profiling.device import Material

SLICES = (2, 4, 8)
AXES = {DECODE: "micro_batch", DEEP: "micro_batch", PREFILL: "tokens"}
WORDS = {
    DECODE: "decode step, {} together",
    DEEP: "decode step, {} together, each with 1,024 tokens in its cache",
    PREFILL: "prompt of {} tokens",
}


def first_of_all(program: Path, scratch: Path) -> Path:
    """A program that runs the given one before all others; itself for a user who may not."""
    wrapper = scratch / program.name
    first = (
        "echo -20 > /proc/self/autogroup; exec nice -n -20"  # niceness counts within a session's group only
    )
    wrapper.write_text(f'#!/bin/sh\n{first} {shlex.quote(str(program))} "$@"\n')
    wrapper.chmod(0o755)
    return wrapper if os.geteuid() == 0 else program


async def measure(folder: Path, model: Path, scratch: Path, rounds: int) -> tuple[list[Timing], Material]:
    from inventory import library, remote  # noqa: PLC0415 - Django is set up first
    from inventory.models import Device  # noqa: PLC0415
    from inventory.probe import probe  # noqa: PLC0415
    from inventory.profiling.device import Material, time_device  # noqa: PLC0415
    from inventory.profiling.settings import Grid  # noqa: PLC0415

    device = Device(name="this machine", connection=Device.Connections.LOCAL, ram_usable_bytes=0)
    async with remote.connect(device) as connection:
        probed = await probe(connection, str(folder), time.time)
        device.hardware, device.llama = probed.hardware | {"gpus": [], "cores": 2}, probed.llama
        device.llama["server_path"] = str(first_of_all(Path(device.llama["server_path"]), scratch))
        inspected = await library.inspect(connection, await library.found_again(connection, str(model)))
    material = Material(inspected, {}, (model,))
    grid = Grid(
        depths=(*SLICES, len(material.shape.blocks)),
        micro_batches=(1, 4, 8),
        prompts=(128, 512, 1024),
        decode_tokens=32,
        decode_seconds=0.5,
        min_rounds=rounds,
        max_rounds=rounds,
        budget_seconds=86_400.0,
        deep_micro_batches=(1, 4),
        deep_tokens=1024,
    )
    steps = rounds * len(grid.depths) * grid.cells
    seen = iter(range(1, steps + 1))
    timings = await time_device(
        device, material, grid, lambda text, share, left: report.progress(next(seen, steps), steps, text)
    )
    return timings, material


def table(timings: list[Timing], whole_blocks: int, head_blocks: float) -> str:
    fitted = fit([timing for timing in timings if timing.blocks in SLICES], head_blocks)
    lines = ["| what | from slices of 2, 4, 8 blocks | whole model | off by |", "|---|---|---|---|"]
    tables = fitted.tables | {DEEP: at_depth(fitted.tables, 1.0, whole_blocks)[DECODE]}
    for phase, axis in AXES.items():
        columns = tables[phase]
        whole = cell_seconds(
            timing for timing in timings if timing.phase == phase and timing.blocks == whole_blocks
        )
        for index, size in enumerate(columns[axis]):
            if (size, whole_blocks) not in whole:
                continue
            predicted = predict(columns, index, whole_blocks)
            measured = whole[size, whole_blocks]
            what = WORDS[phase].format(size)
            off = f"{predicted / measured - 1:+.1%}"
            lines.append(f"| {what} | {seconds_text(predicted)} | {seconds_text(measured)} | {off} |")
    lines.append(f"\nLargest distance of a slice from the fit: {fitted.residual:.0%}.")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--llama-folder", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "e2llm_web.settings")
    django.setup()
    with TemporaryDirectory() as scratch:
        timings, material = asyncio.run(
            measure(options.llama_folder.resolve(), options.model.resolve(), Path(scratch), options.rounds)
        )
    text = table(timings, len(material.shape.blocks), material.shape.head_blocks)
    print(text)
    if options.write:
        report.write_part(options.write, "profiles", text)


if __name__ == "__main__":
    main()

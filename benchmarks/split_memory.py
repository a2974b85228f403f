"""Predicted memory of each device of a split replica beside the load log of its master, for four architectures.

    python -m benchmarks.split_memory --llama-folder FOLDER --model GGUF [--write docs/results.md]

A master and an RPC worker on this machine's CPU stand for two devices; the worker has the last
two thirds of the blocks.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import memory, report
from inventory.core.model_fit import Memory, Setting, stage_memory_of
from inventory.core.model_shape import ModelShape
from inventory.core.quantities import bytes_text
from serving.core.commands import HEAD_STAYS_HOME

SETTINGS = (Setting(2048, slots=2), Setting(1024, slots=4, kv_type="q8_0"))
BUFFER = re.compile(r": +(\S+) +(model|KV|compute|output) buffer size = +([\d.]+) MiB")
MASTER, WORKER = "master", "worker"


@dataclass(frozen=True)
class Stage:
    """One device of the replica: what it runs, and its buffers as predicted and as logged."""

    role: str
    blocks: int
    predicted: Memory
    found: Memory


@contextmanager
def worker(program: Path) -> Iterator[str]:
    """An RPC worker's endpoint."""
    endpoint = f"127.0.0.1:{memory.free_port()}"
    host, port = endpoint.split(":")
    argv = [str(program), "-H", host, "-p", port, "-d", "CPU", "-t", "1"]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(1.0)
    try:
        yield endpoint
    finally:
        process.kill()
        process.wait()


def stages(path: Path, setting: Setting, folder: Path, log: Path) -> list[Stage]:
    """Both devices of one replica."""
    shape = memory.shape_at(path)
    remote = len(shape.blocks) * 2 // 3
    with worker(folder / "ggml-rpc-server") as endpoint:
        # No mapped file: the log counts all of a mapping, also what the worker has and nobody reads.
        placement = [
            *("--rpc", endpoint, "-dev", "RPC0", "-ngl", str(remote + 1), "-ts", str(remote + 1)),
            *("-ot", HEAD_STAYS_HOME, "--no-mmap"),
        ]
        text = memory.load_log(path, setting, folder / "llama-server", log, placement)
    found = {role: dict.fromkeys(memory.KINDS, 0.0) for role in (MASTER, WORKER)}
    for device, kind, size in BUFFER.findall(text):
        found[WORKER if device.startswith("RPC") else MASTER][kind] += float(size) * 2**20
    return [
        Stage(role, blocks, predicted(shape, setting, role, remote), memory_found(found[role]))
        for role, blocks in ((MASTER, len(shape.blocks) - remote), (WORKER, remote))
    ]


def predicted(shape: ModelShape, setting: Setting, role: str, remote: int) -> Memory:
    own = shape.blocks[:-remote] if role == MASTER else shape.blocks[-remote:]
    return stage_memory_of(shape, setting, own, master=role == MASTER)


def memory_found(sizes: dict[str, float]) -> Memory:
    return Memory(*(round(sizes[kind]) for kind in memory.KINDS))


def row(name: str, setting: Setting, stage: Stage) -> str:
    guess, found = stage.predicted, stage.found
    cells = [
        name,
        f"{setting.slots} x {setting.context_tokens}, {setting.kv_type}",
        f"{stage.role}, {stage.blocks} blocks",
        *(bytes_text(size) for size in (found.weight_bytes, found.kv_bytes, found.compute_bytes)),
        f"{bytes_text(guess.total_bytes)} of {bytes_text(found.total_bytes)}",
        f"{guess.total_bytes / found.total_bytes - 1:+.1%}",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--llama-folder", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    lines = [
        "| model | slots x context, cache | device | weights | KV | compute | predicted in all | off by |",
        "|---|---|---|---|---|---|---|---|",
    ]
    with TemporaryDirectory() as folder:
        models = memory.models(options.model, Path(folder))
        todo = [(name, path, setting) for name, path in models.items() for setting in SETTINGS]
        for done, (name, path, setting) in enumerate(todo):
            report.progress(done, len(todo), name)
            found = stages(path, setting, options.llama_folder, Path(folder) / "log")
            lines += [row(name, setting, stage) for stage in found]
        report.progress(len(todo), len(todo), "done")
    text = "\n".join(lines)
    print(text)
    if options.write:
        report.write_part(options.write, "split-memory", text)


if __name__ == "__main__":
    main()

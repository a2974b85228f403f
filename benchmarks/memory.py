"""Predicted memory of a llama-server beside what its load log says, for four architectures.

    python -m benchmarks.memory --llama-server PATH --model GGUF [--write docs/results.md]

The given model is one of them and lends its tokenizer to three small ones with random weights.
"""

from __future__ import annotations

import argparse
import re
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import report
from benchmarks.loadable_models import DENSE, MIXTURE, WINDOWED
from inventory.core.gguf import read_header
from inventory.core.model_fit import Memory, Setting, memory_of
from inventory.core.model_shape import ModelShape, shape_of
from inventory.core.quantities import bytes_text

LOAD_SECONDS = 120.0
KINDS = ("model", "KV", "compute", "output")
BUFFER = re.compile(r"(\w+) buffer size = +([\d.]+) MiB")
LAST_LINE = b"graph splits"
ON_THE_CPU = ("-dev", "none")
SETTINGS = (
    Setting(2048),
    Setting(2048, slots=4),
    Setting(1024, slots=4, kv_type="q8_0"),
    Setting(2048, slots=2, micro_batch_tokens=256),
    Setting(2048, slots=4, full_cache=True),
)
MADE = {"dense": DENSE, "mixture of experts": MIXTURE, "sliding window": WINDOWED}


def models(given: Path, folder: Path) -> dict[str, Path]:
    """Name -> file of every model that is compared."""
    made = {name: model.write(folder / f"{model.architecture}.gguf", given) for name, model in MADE.items()}
    return {given.stem: given, **made}


def shape_at(path: Path) -> ModelShape:
    with path.open("rb") as file:
        return shape_of([read_header(file, path.stat().st_size)])


def load_log(
    path: Path, setting: Setting, llama_server: Path, log: Path, placement: Sequence[str] = ON_THE_CPU
) -> str:
    """What llama-server logs while it loads, up to its last buffer."""
    with log.open("wb") as sink:
        process = subprocess.Popen(
            arguments(path, setting, llama_server, placement), stdout=sink, stderr=sink
        )
        end = time.monotonic() + LOAD_SECONDS
        try:
            while LAST_LINE not in log.read_bytes():
                ended = process.poll() is not None or time.monotonic() > end
                assert not ended, log.read_text(errors="replace")[-500:]
                time.sleep(0.05)
        finally:
            process.kill()
            process.wait()
    return log.read_text(errors="replace")


def allocated(path: Path, setting: Setting, llama_server: Path, log: Path) -> Memory:
    """The buffers that the load log lists."""
    sizes = dict.fromkeys(KINDS, 0.0)
    for kind, size in BUFFER.findall(load_log(path, setting, llama_server, log)):
        sizes[kind] += float(size) * 2**20
    return Memory(*(round(sizes[kind]) for kind in KINDS))


def arguments(path: Path, setting: Setting, llama_server: Path, placement: Sequence[str]) -> list[str]:
    return [
        *(str(llama_server), "-m", str(path), "--host", "127.0.0.1", "--port", str(free_port())),
        *("-c", str(setting.cache_tokens), "-np", str(setting.slots), "-ub", str(setting.micro_batch_tokens)),
        *("-ctk", setting.kv_type, "-ctv", setting.kv_type, "-kvu", "-fa", "on", "-fit", "off", "-t", "1"),
        *("--cache-ram", "0", "--no-warmup", "-lv", "4", *(["--swa-full"] if setting.full_cache else [])),
        *placement,
    ]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def table(rows: list[tuple[str, Setting, Memory, Memory]]) -> str:
    lines = [
        "| model | slots x context | cache | micro-batch | weights | KV | compute | predicted in all | off by |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, setting, predicted, found in rows:
        cache = f"{setting.kv_type}{', full windows' if setting.full_cache else ''}"
        off = predicted.total_bytes / found.total_bytes - 1
        cells = [
            name,
            f"{setting.slots} x {setting.context_tokens}",
            cache,
            str(setting.micro_batch_tokens),
            *(bytes_text(size) for size in (found.weight_bytes, found.kv_bytes, found.compute_bytes)),
            f"{bytes_text(predicted.total_bytes)} of {bytes_text(found.total_bytes)}",
            f"{off:+.1%}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--llama-server", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    rows = []
    with TemporaryDirectory() as folder:
        found = models(options.model, Path(folder))
        todo = [(name, path, setting) for name, path in found.items() for setting in SETTINGS]
        for done, (name, path, setting) in enumerate(todo):
            report.progress(done, len(todo), name)
            measured = allocated(path, setting, options.llama_server, Path(folder) / "log")
            rows.append((name, setting, memory_of(shape_at(path), setting), measured))
        report.progress(len(todo), len(todo), "done")
    text = table(rows)
    print(text)
    if options.write:
        report.write_part(options.write, "memory", text)


if __name__ == "__main__":
    main()

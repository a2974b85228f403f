"""Coverage-guided fuzzing of the GGUF reader: any bytes give a shape or our own error, in bounded memory and time.

    python -m tests.inventory.fuzz_gguf [SECONDS]

libFuzzer by way of atheris, which has builds for Linux on x86-64 only. Elsewhere the property tests do what they can.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from io import BytesIO
from pathlib import Path

USUAL_SECONDS = 60
DATA_BYTES = 1 << 30  # of tensors behind the header, which is all that is read
CORPUS = Path(".hypothesis/gguf-corpus")  # kept: the next run goes on from what this one found
LIMITS = ("-rss_limit_mb=1024", "-timeout=10", "-max_len=16384", "-print_final_stats=1")


def seeds(folder: Path) -> None:
    """Where it starts: small valid models of several shapes, and the hostile headers that are known."""
    from inventory.core.gguf import read_header  # not before it is instrumented
    from tests.inventory import test_gguf, tiny_models

    folder.mkdir(parents=True, exist_ok=True)
    for name, model in (("llama", tiny_models.LLAMA), ("mixture", tiny_models.MIXTURE)):
        path = model.write(folder / name)
        with path.open("rb") as file:
            header = read_header(file, path.stat().st_size)
        os.truncate(path, header.data_start)
    for number, content in enumerate([*test_gguf.HOSTILE.values(), *test_gguf.WRONG_MODELS.values()]):
        (folder / f"hostile-{number}").write_bytes(content)


def main() -> int:
    if importlib.util.find_spec("atheris") is None:
        print("atheris has no build for this machine; the property tests of `make fuzz` ran without it.")
        return 0
    atheris = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["inventory.core"]):
        gguf, model_shape, model_fit, slices = (
            importlib.import_module(f"inventory.core.{name}")
            for name in ("gguf", "model_shape", "model_fit", "slices")
        )

    def read(content: bytes) -> None:
        """All that pages and profiles make of a header."""
        try:
            header = gguf.read_header(BytesIO(content), len(content) + DATA_BYTES)
            shape = model_shape.shape_of([header])
        except gguf.GgufError:
            return
        model_fit.memory_of(shape, model_fit.Setting(4096, slots=2))
        model_fit.fit_of(shape, 10**9, 10**9, 4096)
        model_shape.ModelShape.from_dict(shape.to_dict())
        slices.plan_slice([header], content[: header.data_start], [0])

    seconds = sys.argv[1] if len(sys.argv) > 1 else str(USUAL_SECONDS)
    seeds(CORPUS)
    atheris.Setup([sys.argv[0], f"-max_total_time={seconds}", *LIMITS, str(CORPUS)], read)
    atheris.Fuzz()  # does not come back
    return 0


if __name__ == "__main__":
    sys.exit(main())

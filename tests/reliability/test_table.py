"""Every test that docs/reliability.md and docs/threat-model.md name is there, under the name that stands in its row."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
TABLE = TESTS.parent / "docs" / "reliability.md"
DEMANDS = TESTS.parent / "docs" / "threat-model.md"
DEMANDS_BEGIN = "## Each demand and its test"
SAME_AS_ABOVE = "…"


def references(text: str) -> Iterator[tuple[str, str]]:
    """(module, words of the test's name) of all rows; a module alone has no words.

    `…` is the module with which the row above begins; a name without a module belongs to the one before it.
    """
    row_module = ""
    for line in text.splitlines():
        if not line.startswith("| ") or line.startswith(("| row |", "| fault |")):
            continue
        quoted = re.findall(r"`([^`]+)`", line.rstrip("| ").rpartition(" | ")[2])
        module = ""
        for position, text in enumerate(quoted):
            if text.startswith(f"{SAME_AS_ABOVE}["):
                continue  # another case of the test in the row above
            named, _, words = text.partition(": ") if ": " in text else ("", "", text)
            if re.fullmatch(r"(reliability/)?test_\w+", words) and not named:
                named, words = words, ""
            module = row_module if named == SAME_AS_ABOVE else named or module
            if position == 0:
                row_module = module
            yield module, re.sub(r"\[.*", "", words)


def has_test(module: str, words: str) -> bool:
    files = list(TESTS.rglob(f"{module}.py"))
    pattern = rf"def test_\w*{re.escape(words)}" if words else "def test_"
    return any(re.search(pattern, file.read_text()) for file in files)


def test_every_test_in_the_table_of_faults_is_there() -> None:
    named = list(references(TABLE.read_text()))
    assert len(named) > 100
    assert absent(named) == []


def test_every_test_in_the_table_of_security_is_there() -> None:
    named = list(references(DEMANDS.read_text().partition(DEMANDS_BEGIN)[2]))
    assert len(named) > 30
    assert absent(named) == []


def absent(named: list[tuple[str, str]]) -> list[str]:
    return [f"{module}: {words}" for module, words in named if not has_test(module, words)]

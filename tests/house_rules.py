"""The rules of CONTRIBUTING.md that neither ruff nor import-linter knows: sizes, names, broad excepts."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

LONGEST_FILE_LINES = 400
LONGEST_SCRIPT_LINES = 150
LONGEST_FUNCTION_LINES = 50
NAMES_WITHOUT_A_SUBJECT = re.compile(r"(^|_)(utils?|helpers?|common|base|managers?|misc|part\d+)$")
BROAD = {"Exception", "BaseException"}
UNFINISHED = re.compile("TO" + r"DO\b|FIX" + r"ME\b|X" + r"XX\b")
APPS = ("accounts", "jobs", "inventory", "planner", "serving", "upkeep", "demo", "e2llm_web")
TOP_LEVEL = {
    *(
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "LICENSE",
        "Makefile",
        "pyproject.toml",
        "manage.py",
        "run",
    ),
    *(
        "requirements.lock",
        "requirements-clients.lock",
        "requirements-demo.lock",
        "requirements-fuzz.lock",
        ".gitignore",
    ),
    *(".pre-commit-config.yaml", ".ci", "docs", "benchmarks", "templates", "static", "tests", *APPS),
}


def tracked() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached"], capture_output=True, text=True, check=True
    ).stdout
    return [path for path in map(Path, listed.splitlines()) if path.exists()]


def faults(paths: list[Path]) -> Iterator[str]:
    for path in paths:
        if path.parts[0] not in TOP_LEVEL:
            yield f"{path}: {path.parts[0]} is not in the layout (docs/architecture.md)"
        if path.suffix == ".py" and "migrations" not in path.parts:
            yield from faults_of_python(path)
        if path.suffix == ".html" and path.parts[0] == "templates":
            yield from faults_of_template(path)
        if path.suffix == ".js" and "vendor" not in path.parts:
            yield from too_long(path, LONGEST_SCRIPT_LINES)


def faults_of_python(path: Path) -> Iterator[str]:
    if NAMES_WITHOUT_A_SUBJECT.search(path.stem):
        yield f"{path}: a file is named after the one thing it knows"
    yield from too_long(path, LONGEST_FILE_LINES)
    text = path.read_text()
    for number, line in enumerate(text.splitlines(), 1):
        if UNFINISHED.search(line):
            yield f"{path}:{number}: unfinished work belongs in an issue"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > LONGEST_FUNCTION_LINES:
                yield f"{path}:{node.lineno}: {node.name} has {lines} lines, {LONGEST_FUNCTION_LINES} are the most"
        if (
            isinstance(node, ast.ExceptHandler)
            and swallows_everything(node)
            and not may_catch_everything(path)
        ):
            yield f"{path}:{node.lineno}: only a runner.py catches everything"


def may_catch_everything(path: Path) -> bool:
    return path.parts[0] == "tests" or "runner" in {path.stem, *path.parts}


def swallows_everything(handler: ast.ExceptHandler) -> bool:
    """A broad handler that does not pass the exception on; cleaning up and raising again is fine."""
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    is_broad = any(kind is None or (isinstance(kind, ast.Name) and kind.id in BROAD) for kind in kinds)
    last = handler.body[-1]
    return is_broad and not (isinstance(last, ast.Raise) and last.exc is None)


def faults_of_template(path: Path) -> Iterator[str]:
    """The content security policy stops inline code, so it would fail in the browser without a word."""
    text = path.read_text()
    if re.search(r"\son\w+\s*=\s*[\"']", text):
        yield f"{path}: an inline event handler does not run under our content security policy"
    for tag in re.findall(r"<script\b[^>]*>", text):
        if "src=" not in tag and "application/json" not in tag:
            yield f"{path}: an inline script does not run under our content security policy"


def too_long(path: Path, most: int) -> Iterator[str]:
    lines = len(path.read_text().splitlines())
    if lines > most:
        yield f"{path}: {lines} lines, {most} are the most; split it by noun"


if __name__ == "__main__":
    found = list(faults(tracked()))
    print("\n".join(found) or "house rules kept")
    sys.exit(1 if found else 0)

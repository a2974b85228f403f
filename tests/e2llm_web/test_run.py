"""The script that a newcomer starts first."""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest
from django.conf import settings

from planner.services.runs import DATA_FOLDER


@pytest.fixture
def run() -> ModuleType:
    loader = SourceFileLoader("run", str(settings.BASE_DIR / "run"))
    spec = spec_from_loader("run", loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_a_long_silent_installation_says_that_it_goes_on(
    run: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = "import sys, time; time.sleep(0.5); sys.exit(3)"
    with subprocess.Popen([sys.executable, "-c", slow]) as process:
        assert run.wait_aloud(process, 0.1) == 3
    assert "still installing after 0 s" in capsys.readouterr().out


def test_the_locks_of_the_tests_and_of_the_product_name_the_same_versions(run: ModuleType) -> None:
    product, clients = (
        dict(re.findall(r"^([\w.-]+)==(\S+)", lock.read_text(), re.MULTILINE))
        for lock in (run.LOCK, run.CLIENTS_LOCK)
    )
    shared = product.keys() & clients.keys()
    assert {"openai", "aiohttp"} <= shared
    assert {name: clients[name] for name in shared} == {name: product[name] for name in shared}


def test_paths_of_a_command_are_those_of_the_folder_it_is_called_in(run: ModuleType, tmp_path: Path) -> None:
    if not run.is_current(run.LOCK):
        pytest.skip("no .venv that ./run set up")
    shutil.copy(DATA_FOLDER / "gpt-oss-20b.cluster.json", tmp_path / "lab.json")
    (tmp_path / "lower").mkdir()
    environment = {key: value for key, value in os.environ.items() if key != "DJANGO_SETTINGS_MODULE"}
    command = [
        *(sys.executable, str(run.ROOT / "run"), "manage"),
        *("plan", "../lab.json", "--method", "paper", "--json"),
    ]
    told = subprocess.check_output(command, cwd=tmp_path / "lower", env=environment)
    assert json.loads(told)["format"] == "e2llm-plan/1"


def test_a_data_folder_by_a_relative_path_is_the_same_from_everywhere(
    run: ModuleType, tmp_path: Path
) -> None:
    ask = "import django.conf; print(django.conf.settings.DATA_DIR)"
    environment = {
        **os.environ,
        "E2LLM_DATA": "../elsewhere",
        "PYTHONPATH": str(run.ROOT),
        "E2LLM_SECRET_KEY": "x",
    }
    environment["DJANGO_SETTINGS_MODULE"] = "e2llm_web.settings"
    told = subprocess.check_output([sys.executable, "-c", ask], cwd=tmp_path, env=environment, text=True)
    assert told.strip() == str(run.ROOT.parent / "elsewhere")

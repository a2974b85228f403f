"""The script that a newcomer starts first."""

import re
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from types import ModuleType

import pytest
from django.conf import settings


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

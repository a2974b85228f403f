"""Two gateways at one site: one serves, the other says who, and takes over when the first is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.db import DatabaseError

from serving.gateway import lease as lease_module
from serving.gateway.lease import LIFE_SECONDS, RENEW_SECONDS, Lease
from serving.models import GatewayLease
from tests.conftest import wait_until

ROOT = Path(__file__).resolve().parents[2]
STARTS = "-m uvicorn serving.gateway.app:app --http serving.gateway.doorway:Connection --no-proxy-headers"
MAKE_KEY = """
from django.core.management import call_command
call_command("migrate", verbosity=0)
from accounts import services, vault
from accounts.models import User
vault.create_key_file()
print(services.create_api_key(User.objects.create(username="ada"), "notebook")[1])
"""


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def on_machine(lease: Lease, machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(lease_module, "this_machine", lambda: machine)
        lease.keep()


@pytest.mark.django_db
def test_the_first_serves_and_the_second_names_it(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Lease("one", "http://10.0.0.1:8001", clock), Lease("two", "http://10.0.0.2:8001", clock)
    assert first.refusal() == "just starting"
    on_machine(first, "lab-1 boot", monkeypatch)
    on_machine(second, "lab-2 boot", monkeypatch)
    assert first.refusal() == ""
    assert "http://10.0.0.1:8001" in second.refusal() and "on lab-1" in second.refusal()


@pytest.mark.django_db
def test_a_silent_owner_is_replaced_after_the_life_of_its_lease_and_stands_by_when_it_wakes(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Lease("one", "http://10.0.0.1:8001", clock), Lease("two", "http://10.0.0.2:8001", clock)
    on_machine(first, "lab-1", monkeypatch)
    on_machine(second, "lab-2", monkeypatch)
    clock.now += LIFE_SECONDS
    on_machine(second, "lab-2", monkeypatch)
    assert second.refusal()
    clock.now += 0.1
    assert "asleep" in first.refusal()
    on_machine(second, "lab-2", monkeypatch)
    assert second.refusal() == ""
    on_machine(first, "lab-1", monkeypatch)
    assert "http://10.0.0.2:8001" in first.refusal()
    assert GatewayLease.objects.get().fence == 2


@pytest.mark.django_db
def test_an_owner_that_lives_is_never_replaced(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Lease("one", "http://10.0.0.1:8001", clock), Lease("two", "http://10.0.0.2:8001", clock)
    for _ in range(20):
        on_machine(first, "lab-1", monkeypatch)
        on_machine(second, "lab-2", monkeypatch)
        assert (first.refusal(), bool(second.refusal())) == ("", True)
        clock.now += RENEW_SECONDS


@pytest.mark.django_db
def test_of_two_that_want_a_free_lease_one_gets_it(clock: Clock) -> None:
    gone = Lease("gone", "http://10.0.0.1:8001", clock)
    gone.keep()
    gone.release()
    first, second = Lease("one", "http://10.0.0.2:8001", clock), Lease("two", "http://10.0.0.3:8001", clock)
    row = GatewayLease.objects.get()
    first._take(row, clock.now)
    second._take(row, clock.now)
    assert (first.fence, second.fence) == (2, 0)


@pytest.mark.django_db
def test_a_database_that_is_away_takes_the_lease_from_nobody(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = Lease("one", "http://10.0.0.1:8001", clock)
    lease.keep()
    clock.now += 10 * LIFE_SECONDS
    assert "asleep" in lease.refusal()

    def away(*_: Any) -> bool:
        raise DatabaseError("no connection")

    with monkeypatch.context() as patch:
        patch.setattr(lease, "_renew", away)
        with pytest.raises(DatabaseError):
            lease.keep()
    assert lease.refusal() == ""
    lease.keep()
    assert lease.refusal() == "" and GatewayLease.objects.get().beat == 1


def manage(environment: dict[str, str], *words: str, text: str = "") -> str:
    argv = [sys.executable, "manage.py", *words]
    done = subprocess.run(argv, cwd=ROOT, env=environment, input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def start(environment: dict[str, str], port: int) -> subprocess.Popen[bytes]:
    own = {**environment, "E2LLM_GATEWAY_URL": f"http://127.0.0.96:{port}"}
    argv = [
        sys.executable,
        *STARTS.split(),
        "--host",
        "127.0.0.96",
        "--port",
        str(port),
        "--log-level",
        "warning",
    ]
    return subprocess.Popen(argv, cwd=ROOT, env=own)


def asked(port: int, key: str) -> tuple[int, str]:
    """Status and words of the gateway's answer; 0 while it does not listen."""
    try:
        answer = httpx.get(
            f"http://127.0.0.96:{port}/v1/models", headers={"Authorization": f"Bearer {key}"}, timeout=20
        )
    except httpx.TransportError:
        return 0, ""
    return answer.status_code, answer.text


def test_of_two_real_gateways_one_serves_until_it_is_killed_or_stopped(
    tmp_path: Path, valkey_url: str
) -> None:
    inherited = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    environment = {**inherited, "E2LLM_DATA": str(tmp_path), "REDIS_URL": valkey_url}
    key = manage(environment, "shell", "--verbosity", "0", text=MAKE_KEY).splitlines()[-1]
    first, second = start(environment, 18961), None
    try:
        wait_until(lambda: asked(18961, key)[0] == 200, "the first serves", seconds=120)
        second = start(environment, 18962)
        wait_until(lambda: asked(18962, key)[0] == 503, "the second stands by", seconds=120)
        status, text = asked(18962, key)
        assert "http://127.0.0.96:18961" in text and "standing_by" in text
        assert httpx.get("http://127.0.0.96:18962/healthz", timeout=20).status_code == 200
        assert "18961" in httpx.get("http://127.0.0.96:18962/readyz", timeout=20).json()["status"]
        assert asked(18961, key)[0] == 200
        first.kill()
        wait_until(lambda: asked(18962, key)[0] == 200, "the second took over", seconds=60)
        first.wait()
        first = start(environment, 18961)
        wait_until(lambda: asked(18961, key)[0] == 503, "the first stands by now", seconds=120)
        assert "http://127.0.0.96:18962" in asked(18961, key)[1]
        second.send_signal(signal.SIGTERM)
        second.wait()
        wait_until(lambda: asked(18961, key)[0] == 200, "the first serves again", seconds=60)
    finally:
        for process in (first, second):
            if process is not None:
                process.kill()
                process.wait()

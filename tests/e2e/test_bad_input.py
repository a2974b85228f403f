"""Bad input on the way to an answer: cause and remedy stand in the page, and nothing half-started stays."""

import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import asyncssh
import pytest

from demo import hosts
from demo.hosts import DemoHost
from serving.processes.observe import FIRST_PORT, LAST_PORT
from tests.e2e import traces
from tests.e2e.visitor import Visitor, words
from tests.lab.threaded_hosts import serving
from tests.running_site import Site

pytestmark = pytest.mark.whole
PLAN = {
    "method": "auto",
    "runtime": "serial",
    "seed": 1,
    "allow_mixed": "on",
    "input_tokens": 64,
    "output_tokens": 64,
    "context_tokens": 512,
    "arrival_seconds": 5,
    "requests": 5,
    "min_tokens_per_second": 0.1,
    "max_slots": 1,
}


@pytest.fixture(scope="module")
def profiled(visitor: Visitor, site: Site, lab: list[DemoHost]) -> tuple[int, int]:
    """The ids of a device and of a model with a profile on it."""
    visitor.add_device(lab[0])
    assert visitor.finished_job("inventory.probe_device") == ""
    [(device,)] = site.rows("SELECT id FROM inventory_device WHERE name = ?", lab[0].name)
    visitor.send("/models/scan/", page=visitor.open("/models/"))
    assert visitor.finished_job("inventory.scan_models") == ""
    [(model,)] = site.rows("SELECT id FROM inventory_languagemodel")
    chosen = {"model": model, "devices": [device], "thoroughness": "quick"}
    visitor.send("/profiles/start/", chosen, page=visitor.open("/profiles/"))
    assert visitor.finished_job("inventory.profile_devices") == ""
    return device, model


@contextmanager
def all_ports_taken() -> Iterator[None]:
    """Listen on every port that a deployment may choose."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, LAST_PORT - FIRST_PORT + 2000), hard))
    with ExitStack() as stack:
        for port in range(FIRST_PORT, LAST_PORT + 1):
            taken = stack.enter_context(socket.socket())
            try:
                taken.bind(("127.0.0.1", port))
                taken.listen(1)
            except OSError:
                continue  # somebody else has it, which is as good
        yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def saved(site: Site, name: str) -> int:
    return len(site.rows("SELECT id FROM inventory_device WHERE name = ?", name))


def test_wrong_password(visitor: Visitor, site: Site, lab: list[DemoHost]) -> None:
    page = visitor.add_device(lab[1], name="wrong-password", password="not it")
    assert "refused the password of 'ben'. Check user and password. Nothing was saved." in words(page)
    assert saved(site, "wrong-password") == 0
    assert not lab[1].authorized_keys.exists()


def test_unknown_user(visitor: Visitor, site: Site, lab: list[DemoHost]) -> None:
    page = visitor.add_device(lab[1], name="unknown-user", username="nobody")
    assert "refused the password of 'nobody'" in words(page)
    assert saved(site, "unknown-user") == 0


@pytest.mark.parametrize("host", ["no-such-host.invalid", "127.0.0.77"])
def test_unknown_host(visitor: Visitor, site: Site, lab: list[DemoHost], host: str) -> None:
    page = visitor.add_device(lab[1], name="unknown-host", host=host)
    assert f"{host} port {lab[1].port} cannot be reached" in words(page)
    assert "Check the address and the port, and that sshd runs there." in words(page)
    assert f'value="{lab[1].username}"' in page.text, "what was typed is kept"
    assert saved(site, "unknown-host") == 0


def test_changed_host_key(visitor: Visitor, site: Site, tmp_path: Path) -> None:
    [moody, *_] = hosts.hosts(tmp_path)
    with serving([moody]):
        visitor.add_device(moody, name="moody")
        visitor.finished_job("inventory.probe_device")
    old = asyncssh.import_public_key(moody.public_key).get_fingerprint()
    (moody.folder / "host_key").unlink()
    [(device,)] = site.rows("SELECT id FROM inventory_device WHERE name = 'moody'")
    with serving([moody]):
        new = asyncssh.import_public_key(moody.public_key).get_fingerprint()
        visitor.send(f"/devices/{device}/probe/", page=visitor.open(f"/devices/{device}/"))
        assert visitor.finished_job("inventory.probe_device").startswith("failed")
        page = words(visitor.open(f"/devices/{device}/"))
    assert f"Confirmed: {old}. Shown now: {new}. Nothing was sent to it." in page
    assert "confirm the new key" in page
    pinned = site.rows("SELECT host_key, state FROM inventory_device WHERE name = 'moody'")[0]
    assert asyncssh.import_public_key(pinned[0]).get_fingerprint() == old
    assert pinned[1] == "key_changed"


def test_host_without_llama(visitor: Visitor, site: Site, tmp_path: Path) -> None:
    [bare, *_] = hosts.hosts(tmp_path)
    with serving([bare]):
        visitor.add_device(bare, name="bare")
        visitor.finished_job("inventory.probe_device")
        [(device,)] = site.rows("SELECT id FROM inventory_device WHERE name = 'bare'")
        page = words(visitor.open(f"/devices/{device}/"))
    assert "llama-server" in page and "Install" in page
    assert traces.replicas([bare]) == {}


def test_file_that_is_no_gguf(
    visitor: Visitor, site: Site, lab: list[DemoHost], profiled: tuple[int, int]
) -> None:
    broken = lab[0].home / "models" / "notes.gguf"
    broken.write_text("These are notes, not a model.")
    try:
        visitor.send("/models/scan/", page=visitor.open("/models/"))
        assert visitor.finished_job("inventory.scan_models") == ""
        page = words(visitor.open("/models/"))
    finally:
        broken.unlink()
    assert "notes.gguf cannot be used" in page
    assert len(site.rows("SELECT id FROM inventory_languagemodel")) == 1


def test_no_free_port(visitor: Visitor, site: Site, lab: list[DemoHost], profiled: tuple[int, int]) -> None:
    device, model = profiled
    visitor.send("/plans/new/", PLAN | {"model": model, "devices": [device]})
    assert visitor.finished_job("planner.execute_run") == ""
    [(run,)] = site.rows("SELECT id FROM planner_planrun ORDER BY id DESC LIMIT 1")
    with all_ports_taken():
        visitor.send("/deployments/deploy/", {"plan_run": run}, page=visitor.open(f"/plans/{run}/"))
        assert "no port between" in visitor.finished_job("serving.operate")
    [(number, state)] = site.rows("SELECT id, state FROM serving_deployment")
    assert state == "failed"
    assert f"no port between {FIRST_PORT} and {LAST_PORT} is free" in words(
        visitor.open(f"/deployments/{number}/")
    )
    markers = [marker for (marker,) in site.rows("SELECT marker FROM serving_managedprocess")]
    assert traces.replicas(lab) == {}
    assert traces.files(lab, markers) == []


def test_model_larger_than_the_fleet(
    visitor: Visitor, site: Site, lab: list[DemoHost], profiled: tuple[int, int]
) -> None:
    device, model = profiled
    typed = {"main_gb": 0.01, "reason": "to be too small"}
    visitor.send(f"/devices/{device}/memory/", typed, page=visitor.open(f"/devices/{device}/"))
    visitor.send("/plans/new/", PLAN | {"model": model, "devices": [device]})
    visitor.finished_job("planner.execute_run")
    [(run,)] = site.rows("SELECT id FROM planner_planrun ORDER BY id DESC LIMIT 1")
    page = words(visitor.open(f"/plans/{run}/"))
    assert "No plan can hold these limits" in page
    assert "No device has room for the output layer" in page, page
    assert "Smallest change that helps Add a device with" in page
    assert site.rows("SELECT plan FROM planner_planrun WHERE id = ?", run) == [(None,)]

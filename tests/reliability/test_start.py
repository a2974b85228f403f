"""Rows 23 to 26: a start that cannot succeed names the device, the cause and the remedy, and leaves nothing."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from inventory.models import Device
from jobs.models import JobLine, JobStep
from serving.models import Deployment, ManagedProcess
from serving.processes import observe
from tests.reliability.conftest import all_alive
from tests.serving.conftest import OWN_NETWORK, Laboratory

WIDTH = 40  # more ports than other work on this machine may have taken


@pytest.fixture
def foreign() -> Iterator[ExitStack]:
    """Sockets of a program that has nothing to do with us."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture(autouse=True)
def own_addresses(laboratory: Laboratory) -> None:
    """Addresses that no other laboratory on this machine uses."""
    for number, device in enumerate(laboratory.devices.values()):
        device.address = f"{OWN_NETWORK}.{71 + number}"
        device.save()


def hold_ports(foreign: ExitStack, address: str, *, listening: bool) -> list[socket.socket]:
    """Take the ports that would be chosen first; what is bound but does not listen yet cannot be seen beforehand."""
    held = []
    for port in range(observe.FIRST_PORT, observe.FIRST_PORT + WIDTH):
        one = foreign.enter_context(socket.socket())
        with suppress(OSError):
            one.bind((address, port))
            if listening:
                one.listen()
            held.append(one)
    return held


def failed(deployment: Deployment, device: str, *words: str) -> None:
    """The deployment says why, and nothing that was ever started for it is left."""
    assert deployment.state == Deployment.States.FAILED
    for word in (device, *words):
        assert word in deployment.state_reason
    assert all_alive() == {}
    assert not ManagedProcess.objects.exclude(state__in=["exited", "stopped"]).exists()


@pytest.mark.parametrize(
    ("address", "device"), [(f"{OWN_NETWORK}.71", "box-1"), (f"{OWN_NETWORK}.72", "box-2")]
)
def test_port_that_was_taken_in_the_last_moment_is_named_on_master_and_worker(
    address: str, device: str, laboratory: Laboratory, foreign: ExitStack
) -> None:
    """The RPC worker ends with status 0 then, which must not pass for success."""
    held = hold_ports(foreign, address, listening=False)
    deployment = laboratory.deploy(laboratory.split())
    failed(deployment, device, "its port is used by another process")
    assert all(one.getsockname()[0] == address for one in held)


def test_ports_on_which_others_listen_are_left_to_them(laboratory: Laboratory, foreign: ExitStack) -> None:
    held = hold_ports(foreign, f"{OWN_NETWORK}.73", listening=True)
    deployment = laboratory.deploy(laboratory.single())
    assert deployment.state == Deployment.States.RUNNING, deployment.state_reason
    taken = {one.getsockname()[1] for one in held}
    assert deployment.replicas.get().port not in taken
    for one in held:
        socket.create_connection(one.getsockname(), timeout=5).close()


def with_program(device: Device, path: Path, text: str = "") -> None:
    if text:
        path.write_text(text)
        path.chmod(0o755)
    device.llama = device.llama | {"server_path": str(path)}
    device.save()


def test_program_that_was_removed_is_named_with_its_path(laboratory: Laboratory, tmp_path: Path) -> None:
    gone = tmp_path / "llama-server"
    with_program(laboratory.devices["box-3"], gone)
    failed(laboratory.deploy(laboratory.single()), "box-3", f"{gone} is not there", "probe the device again")


def test_program_for_another_processor_is_named(laboratory: Laboratory, tmp_path: Path) -> None:
    text = "#!/bin/sh\necho 'Illegal instruction' >&2; kill -ILL $$\n"
    with_program(laboratory.devices["box-3"], tmp_path / "llama-server", text)
    failed(laboratory.deploy(laboratory.single()), "box-3", "needs a newer processor")


def losing_its_log(path: Path, times: int, program: str) -> str:
    """A llama-server whose first starts end with no word in the log, as a busy machine's sometimes do."""
    return (
        f"#!/bin/sh\necho once >>'{path}.starts'\n"
        f"[ $(wc -l <'{path}.starts') -le {times} ] && exit 1\nexec '{program}' \"$@\"\n"
    )


@pytest.mark.parametrize(("times", "state"), [(2, "running"), (3, "failed")])
def test_server_that_ends_without_a_word_is_started_again_but_not_for_ever(
    times: int, state: str, laboratory: Laboratory, tmp_path: Path
) -> None:
    device, program = laboratory.devices["box-3"], tmp_path / "llama-server"
    with_program(device, program, losing_its_log(program, times, device.llama["server_path"]))
    deployment = laboratory.deploy(laboratory.single())
    assert deployment.state == state, deployment.state_reason
    assert len(Path(f"{program}.starts").read_text().splitlines()) == 3
    assert ("without a word" in deployment.state_reason) == (state == "failed")
    assert ("It was started 3 times" in deployment.state_reason) == (state == "failed")
    said = JobLine.objects.filter(text__endswith="It is started again.")
    assert said.count() == 2, "each try is told in the log of the roll-out"
    assert not JobStep.objects.filter(state=JobStep.States.RUNNING).exists()


@pytest.mark.parametrize(
    ("device", "key", "words"),
    [
        ("box-1", "server_path", "srv start: couldn't bind HTTP server socket, hostname: here, port: 1"),
        ("box-2", "rpc_server_path", "Failed to create server socket"),
    ],
)
def test_replica_whose_port_was_taken_in_the_last_moment_is_started_once_more_on_others(
    device: str, key: str, words: str, laboratory: Laboratory, tmp_path: Path
) -> None:
    box, program = laboratory.devices[device], tmp_path / "program"
    program.write_text(
        f"#!/bin/sh\necho \"$*\" >>'{program}.starts'\n"
        f"[ $(wc -l <'{program}.starts') = 1 ] && {{ echo \"{words}\"; exit 0; }}\nexec '{box.llama[key]}' \"$@\"\n"
    )
    program.chmod(0o755)
    box.llama = box.llama | {key: str(program)}
    box.save()
    deployment = laboratory.deploy(laboratory.split())
    assert deployment.state == Deployment.States.RUNNING, deployment.state_reason
    assert JobLine.objects.filter(text__endswith="The replica is started again on other ports.").exists()
    first, second = Path(f"{program}.starts").read_text().splitlines()
    process = ManagedProcess.objects.get(device=box)
    assert f" {process.port}" not in first
    assert f" {process.port}" in second


def test_another_build_on_one_device_is_refused_with_both_versions(laboratory: Laboratory) -> None:
    device = laboratory.devices["box-2"]
    device.llama = device.llama | {"rpc_protocol": "4.0.0"}
    device.save()
    deployment = laboratory.deploy(laboratory.split())
    failed(deployment, "box-2", "5.0.0", "4.0.0", "Install the same build")


def test_model_file_that_is_gone_is_named_with_its_path(laboratory: Laboratory, tmp_path: Path) -> None:
    file = laboratory.devices["box-3"].model_files.get()
    file.path = str(tmp_path / "gone.gguf")
    file.save()
    deployment = laboratory.deploy(laboratory.single())
    failed(deployment, "box-3", f"{file.path} is not there any more")


def test_model_file_of_another_size_is_named_with_both_sizes(laboratory: Laboratory) -> None:
    file = laboratory.devices["box-3"].model_files.get()
    actual = file.size_bytes
    file.size_bytes += 1
    file.save()
    deployment = laboratory.deploy(laboratory.single())
    failed(deployment, "box-3", f"has {actual} bytes, expected {actual + 1}")


def test_program_killed_while_it_loads_is_said_to_lack_memory(laboratory: Laboratory, tmp_path: Path) -> None:
    text = "#!/bin/sh\necho '0.00.100 I srv load_model: loading model'; kill -KILL $$\n"
    with_program(laboratory.devices["box-3"], tmp_path / "llama-server", text)
    failed(laboratory.deploy(laboratory.single()), "box-3", "killed for lack of memory")


def test_program_that_gets_no_memory_says_so(laboratory: Laboratory, tmp_path: Path) -> None:
    real = laboratory.devices["box-3"].llama["server_path"]
    text = f'#!/bin/sh\nulimit -v 300000; exec "{real}" "$@"\n'
    with_program(laboratory.devices["box-3"], tmp_path / "llama-server", text)
    failed(laboratory.deploy(laboratory.single()), "box-3", "not enough memory")

"""Probing real sshd hosts with odd shells, noise and missing parts; watching them."""

from __future__ import annotations

import asyncio
import subprocess
import time
from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone

from inventory import remote, runner
from inventory.models import Device, SshIdentity
from inventory.probe import Probed, free_port, lacking, missing, probe
from jobs.core.errors import JobFailed
from tests.inventory.conftest import MakeProgress
from tests.lab.sshd_host import MakeHost, SshdHost

pytestmark = pytest.mark.django_db(transaction=True)


def device_on(host: SshdHost, identity: SshIdentity) -> Device:
    key = asyncio.run(remote.fetch_host_key(host.address, host.port))
    return Device.objects.create(
        name=host.address,
        host=host.address,
        port=host.port,
        username=host.username,
        identity=identity,
        host_key=key.line,
    )


def probed(device: Device, llama_folder: str = "") -> Probed:
    async def work() -> Probed:
        async with remote.connect(device) as connection:
            return await probe(connection, llama_folder, time.time)

    return asyncio.run(work())


def with_llama(host: SshdHost, *programs: Path) -> str:
    folder = host.folder / "llama.cpp"
    folder.mkdir()
    for program in programs:
        (folder / program.name).symlink_to(program)
    return str(folder)


@pytest.mark.parametrize("shell", ["/bin/bash", "/bin/dash"])
def test_noise_and_other_login_shells_do_not_matter(
    shell: str, make_host: MakeHost, identity: SshIdentity, llama_server: Path, ggml_rpc_server: Path
) -> None:
    host = make_host(shell=shell, noise='echo "Last login: today"; echo "MemTotal: 1 kB"; echo "motd" >&2')
    found = probed(device_on(host, identity), with_llama(host, llama_server, ggml_rpc_server))
    assert found.hardware["memory_total_bytes"] > 2**28
    assert found.hardware["home"] == str(host.home)
    assert found.llama["version"]
    assert found.llama["rpc_protocol"].count(".") == 2
    assert "--rpc" in found.llama["flags"]
    assert lacking(found.llama) == [] and lacking({"flags": ["--metrics"]})[0].startswith(
        "--swa-full: no hand-over"
    )
    assert found.clock_skew_seconds == 0
    assert missing(found.llama, "box") == ""
    running = subprocess.check_output(["ps", "-eo", "args"], text=True)
    assert f"{host.folder}/llama.cpp/ggml-rpc-server" not in running


def test_llama_cpp_on_path_is_found(
    make_host: MakeHost, identity: SshIdentity, llama_server: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "path"
    folder.mkdir()
    (folder / "llama-server").symlink_to(llama_server)
    host = make_host(path=f"{folder}:/usr/bin:/bin")
    found = probed(device_on(host, identity))
    assert found.llama["server_path"] == str(folder / "llama-server")
    assert found.llama["rpc_server_path"], "it lies beside the real program"


def test_a_host_without_llama_cpp_is_saved_with_the_remedy(
    make_host: MakeHost, identity: SshIdentity, make_progress: MakeProgress
) -> None:
    device = device_on(make_host(), identity)
    runner.probe_device(device, make_progress())
    device.refresh_from_db()
    assert device.llama == {}
    assert device.state == Device.States.ONLINE
    assert "No llama-server was found" in device.state_reason and "Install llama.cpp" in device.state_reason
    assert device not in Device.objects.usable()


def test_a_build_for_another_processor_is_named(make_host: MakeHost, identity: SshIdentity) -> None:
    host = make_host()
    folder = host.folder / "llama.cpp"
    folder.mkdir()
    program = folder / "llama-server"
    program.write_text("#!/bin/sh\nkill -ILL $$\n")
    program.chmod(0o755)
    found = probed(device_on(host, identity), str(folder))
    assert "does not run (exit status 132" in missing(found.llama, "box")
    assert "built for another processor" in missing(found.llama, "box")


def test_folders_with_anything_in_their_names_are_only_names(
    make_host: MakeHost, identity: SshIdentity, llama_server: Path
) -> None:
    host = make_host()
    device = device_on(host, identity)
    folder = host.folder / "a b $(touch canary) 'c'"
    folder.mkdir()
    (folder / "llama-server").symlink_to(llama_server)
    assert probed(device, str(folder)).llama["server_path"] == str(folder / "llama-server")
    assert probed(device, "/nowhere; touch canary").llama == {}
    assert not list(host.folder.rglob("canary"))


def test_a_free_port_is_one_on_which_nothing_listens(make_host: MakeHost, identity: SshIdentity) -> None:
    device = device_on(make_host(), identity)

    async def work() -> set[int]:
        async with remote.connect(device) as connection:
            return {await free_port(connection) for _ in range(5)}

    ports = asyncio.run(work())
    assert all(20_000 <= port < 30_000 for port in ports)


def test_twenty_hosts_at_once(make_host: MakeHost, identity: SshIdentity) -> None:
    host = make_host(extra="MaxStartups 3:50:10\nMaxSessions 2")
    device = device_on(host, identity)

    async def one() -> str:
        async with remote.connect(device) as connection:
            return (await connection.run(["echo", "here"])).stdout

    async def work() -> list[str]:
        return await asyncio.gather(*(one() for _ in range(20)))

    assert asyncio.run(work()) == ["here\n"] * 20


def test_a_host_that_falls_silent_is_suspect_then_lost_then_online_again(
    make_host: MakeHost, identity: SshIdentity, make_progress: MakeProgress
) -> None:
    host = make_host()
    device = device_on(host, identity)
    runner.probe_device(device, make_progress())
    host.stop()
    runner.heartbeat()
    assert state(device) == Device.States.ONLINE, "one miss is no verdict"
    for silent_seconds, expected in ((30, Device.States.SUSPECT), (90, Device.States.LOST)):
        seen = timezone.now() - timedelta(seconds=silent_seconds)
        Device.objects.filter(pk=device.pk).update(last_seen_at=seen)
        runner.heartbeat()
        assert state(device) == expected
    assert host.address in Device.objects.get(pk=device.pk).state_reason
    host.start()
    runner.heartbeat()
    assert state(device) == Device.States.ONLINE


def test_a_changed_host_key_is_a_state_of_its_own(
    make_host: MakeHost, identity: SshIdentity, make_progress: MakeProgress
) -> None:
    host = make_host()
    device = device_on(host, identity)
    runner.probe_device(device, make_progress())
    host.stop()
    host.new_host_key()
    host.start()
    runner.heartbeat()
    assert state(device) == Device.States.KEY_CHANGED
    with pytest.raises(JobFailed, match="different host key"):
        runner.probe_device(device, make_progress())
    assert state(device) == Device.States.KEY_CHANGED


def test_a_restarted_host_is_noticed(
    make_host: MakeHost, identity: SshIdentity, make_progress: MakeProgress
) -> None:
    device = device_on(make_host(), identity)
    runner.probe_device(device, make_progress())
    assert runner.heartbeat() == []
    device.hardware["boot_id"] = "another boot"
    device.save()
    assert runner.heartbeat() == [device]


def state(device: Device) -> str:
    return Device.objects.get(pk=device.pk).state

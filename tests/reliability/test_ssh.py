"""Rows 29 to 33: every way a log-in goes wrong ends in words, in time, and with nothing executed."""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path

import pytest
from django.test import Client

from accounts.models import AuditEntry
from inventory import library, links, remote, runner
from inventory.models import Device, Link, ModelFile, SshIdentity
from inventory.probe import Probed, missing, probe
from inventory.remote import ssh
from tests.conftest import require, wait_until
from tests.inventory.conftest import MakeProgress
from tests.inventory.test_remote import NASTY
from tests.inventory.tiny_models import Tiny
from tests.lab.network import Network
from tests.lab.slow_relay import slow_relay
from tests.lab.sshd_host import MakeHost, SshdHost
from tests.reliability.conftest import device_on

pytestmark = pytest.mark.django_db(transaction=True)

MOTD = (
    'echo "Welcome to $(hostname)"; echo "MemTotal: 1 kB"; echo "e2llm process 1 x" >&2; printf "no newline"'
)


def run(device: Device, *argv: str) -> remote.Completed:
    async def work() -> remote.Completed:
        async with remote.connect(device) as connection:
            return await connection.run(argv)

    return asyncio.run(work())


def probed(device: Device, llama_folder: str) -> Probed:
    async def work() -> Probed:
        async with remote.connect(device) as connection:
            return await probe(connection, llama_folder, time.time)

    return asyncio.run(work())


@pytest.mark.parametrize("shell", ["/bin/bash", "/bin/dash", "/usr/bin/fish"])
def test_login_shell_and_its_noise_change_neither_arguments_nor_answers(
    shell: str, make_host: MakeHost, identity: SshIdentity
) -> None:
    require(f"the login shell {shell}", Path(shell).exists(), f"apt install {Path(shell).name}")
    host = make_host(shell=shell, noise=MOTD)
    device = device_on(host, identity)
    assert run(device, "printf", "%s|", *NASTY).stdout == "".join(f"{word}|" for word in NASTY)
    assert probed(device, "").hardware["memory_total_bytes"] > 2**28
    assert not list(host.folder.rglob("canary"))


def test_host_that_wants_a_password_too_is_refused_in_words_and_does_not_wait_for_one(
    make_host: MakeHost, identity: SshIdentity
) -> None:
    extra = "PasswordAuthentication yes\nAuthenticationMethods publickey,password"
    device = device_on(make_host(extra=extra), identity)
    with pytest.raises(remote.AuthenticationRefused, match="refused our key for the user"):
        run(device, "true")


def test_program_that_asks_like_sudo_is_named_and_nothing_waits_for_the_answer(
    make_host: MakeHost, identity: SshIdentity
) -> None:
    host = make_host()
    folder = host.folder / "llama.cpp"
    folder.mkdir()
    program = folder / "llama-server"
    program.write_text(
        "#!/bin/sh\nprintf '[sudo] password for lab: ' >&2\nread -r word </dev/tty || read -r word\n"
    )
    program.chmod(0o755)
    found = probed(device_on(host, identity), str(folder))
    assert "does not run" in missing(found.llama, "box")
    assert "[sudo] password for lab" in missing(found.llama, "box")


def test_changed_host_key_stops_everything_until_an_admin_says_why(
    make_host: MakeHost, identity: SshIdentity, admin_client: Client
) -> None:
    host = make_host()
    device = device_on(host, identity, "box")
    old = remote.host_key(device.host_key).fingerprint
    host.stop()
    host.new_host_key()
    host.start()
    with pytest.raises(remote.HostKeyChanged):
        run(device, "touch", "canary")
    page = admin_client.get(f"/devices/{device.pk}/host-key/").content.decode()
    new = asyncio.run(remote.fetch_host_key(host.address, host.port))
    assert old in page and new.fingerprint in page
    confirm = f"/devices/{device.pk}/host-key/"
    assert admin_client.post(confirm, {"line": new.line, "reason": ""}).status_code == 422
    admin_client.post(confirm, {"line": new.line, "reason": "new disk"})
    entry = AuditEntry.objects.get(action="device.host_key_changed")
    assert entry.detail == {"old": old, "new": new.fingerprint, "reason": "new disk"}
    device.refresh_from_db()
    assert run(device, "echo", "back").stdout == "back\n"
    assert not (host.home / "canary").exists()


def test_connection_that_falls_silent_fails_at_the_deadline_of_the_step(
    network: Network, identity: SshIdentity
) -> None:
    host = network.add_host(identity.public_key)
    device = device_on(host, identity)

    async def work() -> None:
        async with remote.connect(device) as connection:
            await asyncio.to_thread(network.silence, host)
            with pytest.raises(remote.CommandTimedOut, match=r"did not end within 1 s"):
                await connection.run(["true"], timeout_seconds=1.0)

    asyncio.run(work())


def test_long_transfer_to_a_host_that_fell_silent_is_given_up(
    network: Network, identity: SshIdentity, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh, "KEEPALIVE_SECONDS", 0.5)
    host = network.add_host(identity.public_key)
    device = device_on(host, identity)

    async def work() -> None:
        async with remote.connect(device) as connection:
            await asyncio.to_thread(network.silence, host)
            with pytest.raises(remote.HostUnreachable, match=f"connection to {device.name} broke"):
                await connection.write_file(f"{host.home}/big", bytes(8 * 2**20), timeout_seconds=3600.0)

    asyncio.run(work())


def test_slow_host_does_not_hold_up_the_others(make_host: MakeHost, identity: SshIdentity) -> None:
    near, far = device_on(make_host(), identity), device_on(make_host(), identity)
    ended: list[str] = []

    async def ask(device: Device) -> None:
        async with remote.connect(device) as connection:
            done = await connection.run(["echo", device.name])
            ended.append(done.stdout.strip())

    async def work() -> None:
        async with slow_relay(far.host, far.port, 0.25) as port:
            far.host, far.port = "127.0.0.1", port
            await asyncio.gather(ask(far), ask(near))

    asyncio.run(work())
    assert ended == [near.name, far.name]


def test_twenty_hosts_with_few_sessions_are_asked_at_once_and_only_the_silent_one_is_missing(
    network: Network, identity: SshIdentity
) -> None:
    few = "MaxSessions 2\nMaxStartups 2:50:10"
    hosts = [network.add_host(identity.public_key, extra=few) for _ in range(20)]
    devices = [device_on(host, identity) for host in hosts]
    network.silence(hosts[7])

    async def ask(device: Device) -> str:
        async with remote.connect(device) as connection:
            answers = await asyncio.gather(*(connection.run(["echo", device.name]) for _ in range(4)))
            return answers[-1].stdout.strip()

    async def work() -> list[str | BaseException]:
        return await asyncio.gather(*(ask(device) for device in devices), return_exceptions=True)

    found = asyncio.run(work())
    assert [found[index] for index in range(20) if index != 7] == [
        device.name for index, device in enumerate(devices) if index != 7
    ]
    assert isinstance(found[7], remote.HostUnreachable)
    assert "did not answer within" in str(found[7])


def listening(network: Network, host: SshdHost) -> list[str]:
    return [line.split()[3] for line in network.run_on(host, "ss", "-Hltn").splitlines()]


@pytest.mark.parametrize("way, tools", [("TCP", ["python3"]), ("iperf3", ["python3", "iperf3"])])
def test_link_of_a_hundred_megabits_is_found_as_such(
    way: str, tools: list[str], network: Network, identity: SshIdentity, make_progress: MakeProgress
) -> None:
    require(way, way == "TCP" or shutil.which(way), f"apt install {way}")
    hosts = [network.add_host(identity.public_key) for _ in range(2)]
    network.shape(hosts[1], "100mbit")
    devices = [device_on(host, identity) for host in hosts]
    for device in devices:
        device.hardware = {"tools": tools}
        device.save()
    links.measure_links(devices, make_progress())
    measured = Link.objects.values_list("bytes_per_second", flat=True)
    assert [rate * 8 / 1e6 for rate in measured] == pytest.approx([100, 100], rel=0.1)
    assert all(link.method.startswith(f"{way} between the hosts") for link in Link.objects.all())
    sshd_only = [[f"{host.address}:22"] for host in hosts]
    wait_until(lambda: [listening(network, host) for host in hosts] == sshd_only, "nothing but sshd listens")


FIELDS = ("name", "host", "username", "llama_folder", "model_roots", "address")


@pytest.mark.parametrize("field", FIELDS)
def test_nothing_typed_about_a_device_is_ever_executed(
    field: str, make_host: MakeHost, identity: SshIdentity, admin_client: Client
) -> None:
    host = make_host()
    device = device_on(host, identity, "box")
    typed = {"name": "new", "host": host.address, "port": host.port, "username": host.username}
    for word in NASTY:
        answer = admin_client.post("/devices/add/", {"connection": "ssh", **typed, field: word})
        assert answer.status_code in {200, 302, 422}, (field, word)
    assert not list(host.folder.rglob("canary"))
    assert Device.objects.get() == device


def test_models_in_folders_with_any_name_are_found_and_nothing_is_executed(
    make_host: MakeHost, identity: SshIdentity, make_progress: MakeProgress
) -> None:
    host = make_host()
    names = [word for word in NASTY if "\n" not in word]
    for seed, word in enumerate(names):
        root = host.folder / "models" / word
        root.mkdir(parents=True)
        Tiny("llama", seed=seed).write(root / f"{word}.gguf")
    device = device_on(host, identity, "$(touch canary) 'box'")
    device.model_roots = [str(host.folder / "models" / word) for word in names]
    device.save()
    runner.probe_device(device, make_progress())
    library.scan([device], make_progress(), with_library=False)
    found = sorted(Path(path).stem for path in ModelFile.objects.values_list("path", flat=True))
    assert found == sorted(names)
    assert not list(host.folder.rglob("canary")) and not Path("canary").exists()

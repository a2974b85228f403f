import asyncio
import subprocess
from pathlib import Path

import pytest

from inventory import remote
from inventory.models import Device, SshIdentity
from tests.conftest import require
from tests.lab.sshd_host import MakeHost, SshdHost

NASTY = [
    "a'b",
    "$(touch canary)",
    "`touch canary`",
    "new\nline",
    "; touch canary",
    "-rf",
    "--rpc=x",
    "ü ß 漢",
    '"',
    "\\'",
]

pytestmark = pytest.mark.django_db(transaction=True)


def device_on(host: SshdHost, identity: SshIdentity) -> Device:
    key = asyncio.run(remote.fetch_host_key(host.address, host.port))
    return Device(
        name="box",
        host=host.address,
        port=host.port,
        username=host.username,
        identity=identity,
        host_key=key.line,
    )


def run(device: Device, argv: list[str]) -> remote.Completed:
    async def work() -> remote.Completed:
        async with remote.connect(device) as connection:
            return await connection.run(argv)

    return asyncio.run(work())


def test_arguments_arrive_as_data_whatever_they_hold(make_host: MakeHost, identity: SshIdentity) -> None:
    host = make_host()
    done = run(device_on(host, identity), ["printf", "%s|", *NASTY])
    assert done.stdout == "".join(f"{word}|" for word in NASTY)
    assert [path.name for path in host.home.iterdir()] == [".bashrc"]


def test_script_gets_its_arguments_and_its_exit_status_comes_back(
    make_host: MakeHost, identity: SshIdentity
) -> None:
    device = device_on(make_host(), identity)

    async def work() -> remote.Completed:
        async with remote.connect(device) as connection:
            return await connection.script('cat; for word; do printf "%s|" "$word"; done; exit 7', NASTY)

    done = asyncio.run(work())
    assert (done.exit_status, done.stdout) == (7, "".join(f"{word}|" for word in NASTY))


def test_noise_of_the_login_shell_is_not_part_of_the_answer(
    make_host: MakeHost, identity: SshIdentity
) -> None:
    host = make_host(noise='echo "Welcome to the machine"; echo "last login: never" >&2')
    assert run(device_on(host, identity), ["echo", "answer"]).stdout == "answer\n"


def test_a_changed_host_key_stops_with_both_fingerprints(make_host: MakeHost, identity: SshIdentity) -> None:
    host = make_host()
    device = device_on(host, identity)
    old = remote.host_key(device.host_key).fingerprint
    host.stop()
    host.new_host_key()
    host.start()
    with pytest.raises(remote.HostKeyChanged) as caught:
        run(device, ["touch", "canary"])
    assert caught.value.old_fingerprint == old
    assert caught.value.new_fingerprint != old
    assert old in str(caught.value)
    assert not (host.home / "canary").exists()


def test_an_unknown_key_is_refused_with_the_remedy(make_host: MakeHost, identity: SshIdentity) -> None:
    device = device_on(make_host(), identity)
    device.identity = remote.create_identity("other")
    with pytest.raises(remote.AuthenticationRefused, match="authorized_keys"):
        run(device, ["true"])


def test_a_host_that_is_not_there_is_named(identity: SshIdentity) -> None:
    with pytest.raises(remote.HostUnreachable, match=r"127\.0\.0\.99 port 9"):
        asyncio.run(remote.fetch_host_key("127.0.0.99", 9))


def test_a_host_that_accepts_and_stays_silent_fails_at_the_deadline(
    identity: SshIdentity, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote.errors, "CONNECT_SECONDS", 0.5)

    async def work() -> None:
        server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        async with server:
            await remote.fetch_host_key("127.0.0.1", server.sockets[0].getsockname()[1])

    with pytest.raises(remote.HostUnreachable, match="did not answer within"):
        asyncio.run(work())


def test_a_command_that_does_not_end_is_given_up_and_killed(
    make_host: MakeHost, identity: SshIdentity
) -> None:
    host = make_host()
    device = device_on(host, identity)

    async def work() -> None:
        async with remote.connect(device) as connection:
            with pytest.raises(remote.CommandTimedOut):
                await connection.script("echo $$ > pid; exec sleep 600", timeout_seconds=1.0)
            gone = await connection.script(
                'for _ in 1 2 3 4 5 6 7 8 9 10; do kill -0 "$(cat pid)" 2>/dev/null || exit 0; sleep 0.2; done; exit 1'
            )
            assert gone.succeeded

    asyncio.run(work())


def test_files_are_written_whole_read_and_removed(
    make_host: MakeHost, identity: SshIdentity, tmp_path: Path
) -> None:
    host = make_host()
    device = device_on(host, identity)
    content = bytes(range(256)) * 4096
    (tmp_path / "source").write_bytes(content)
    path = str(host.home / "a b" / "file $(x)'")
    seen: list[tuple[int, int]] = []

    async def work() -> bytes:
        async with remote.connect(device) as connection:
            await connection.write_file(
                path, tmp_path / "source", 0o640, lambda sent, total: seen.append((sent, total))
            )
            data = await connection.read_file(path, 1000)
            assert Path(path).read_bytes() == content
            assert Path(path).stat().st_mode & 0o777 == 0o640
            await connection.remove([path])
            return data

    assert asyncio.run(work()) == content[:1000]
    assert seen[-1] == (len(content), len(content))
    assert not Path(path).exists()


def test_more_commands_than_sessions_are_queued_not_failed(
    make_host: MakeHost, identity: SshIdentity
) -> None:
    device = device_on(make_host(extra="MaxSessions 2"), identity)

    async def work() -> list[remote.Completed]:
        async with remote.connect(device) as connection:
            return await asyncio.gather(
                *(connection.run(["sh", "-c", "sleep 0.2; echo ok"]) for _ in range(10))
            )

    assert [done.stdout for done in asyncio.run(work())] == ["ok\n"] * 10


def test_a_tunnel_reaches_the_hosts_loopback(make_host: MakeHost, identity: SshIdentity) -> None:
    device = device_on(make_host(), identity)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello\n")
        writer.close()

    async def work() -> bytes:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        listening = server.sockets[0].getsockname()[1]
        async with server, remote.connect(device) as connection, connection.tunnel(listening) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            line = await reader.readline()
            writer.close()
            return line

    assert asyncio.run(work()) == b"hello\n"


def test_this_machine_has_the_same_interface(tmp_path: Path) -> None:
    device = Device(name="here", connection=Device.Connections.LOCAL)
    assert run(device, ["printf", "%s|", *NASTY]).stdout == "".join(f"{word}|" for word in NASTY)
    missing = run(device, ["no-such-program-here"])
    assert missing.exit_status == 127


def test_an_unconfirmed_host_gets_nothing(make_host: MakeHost, identity: SshIdentity) -> None:
    device = device_on(make_host(), identity)
    device.host_key = ""
    with pytest.raises(remote.RemoteError, match="has not been confirmed"):
        run(device, ["true"])


def test_a_host_behind_another_is_reached_through_it(make_host: MakeHost, identity: SshIdentity) -> None:
    outer, inner = make_host(), make_host(extra="AllowUsers *@127.0.0.1")
    between = device_on(outer, identity)
    between.save()
    key = asyncio.run(remote.fetch_host_key(inner.address, inner.port, between))
    device = device_on(inner, identity)
    assert device.host_key == key.line
    device.name, device.reached_through = "inner", between
    device.save()
    again = Device.objects.get(name="inner")
    assert run(again, ["sh", "-c", 'echo "$HOME"']).stdout.strip() == str(inner.home)
    outer.stop()
    with pytest.raises(remote.HostUnreachable, match=str(outer.port)):
        run(again, ["true"])


def own_addresses() -> str:
    return subprocess.check_output(["ip", "-6", "-o", "addr", "show", "lo"], text=True)


def test_a_host_with_an_ipv6_address_is_reached(sshd: Path, tmp_path: Path, identity: SshIdentity) -> None:
    require("IPv6 on the loopback", "::1" in own_addresses(), "sysctl net.ipv6.conf.lo.disable_ipv6=0")
    host = SshdHost(sshd, tmp_path / "six", "::1")
    host.start(identity.public_key)
    try:
        device = device_on(host, identity)
        assert run(device, ["sh", "-c", 'echo "$HOME"']).stdout.strip() == str(host.home)
    finally:
        host.stop()


def test_a_ring_of_jump_hosts_is_refused(make_host: MakeHost, identity: SshIdentity) -> None:
    device = device_on(make_host(), identity)
    device.save()
    device.reached_through = device
    with pytest.raises(remote.RemoteError, match="does the chain close"):
        run(device, ["true"])

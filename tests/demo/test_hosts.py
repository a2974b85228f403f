"""The demo's hosts answer a real SSH client as separate machines would."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import asyncssh
import pytest

from demo import hosts
from demo.hosts import DemoHost
from tests.conftest import wait_until


@pytest.fixture
def pair(tmp_path: Path) -> list[DemoHost]:
    return hosts.hosts(tmp_path)[:2]


@pytest.fixture
async def running(pair: list[DemoHost]) -> AsyncIterator[list[DemoHost]]:
    async with AsyncExitStack() as stack:
        for host in pair:
            await stack.enter_async_context(hosts.serving(host))
        yield pair


@pytest.fixture
def survivor() -> Iterator[list[int]]:
    """Process numbers that a test leaves to be ended."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        os.kill(pid, 9)


async def log_in(
    host: DemoHost, *, password: str = "", key: asyncssh.SSHKey | None = None
) -> asyncssh.SSHClientConnection:
    return await asyncssh.connect(
        host.address,
        host.port,
        username=host.username,
        password=password or None,
        client_keys=[key] if key else None,
        known_hosts=None,
        config=None,
        agent_path=None,
    )


async def say(host: DemoHost, command: str) -> str:
    async with await log_in(host, password=host.password) as client:
        done = await client.run(command, check=True)
    return str(done.stdout).strip()


async def fingerprint(host: DemoHost) -> str:
    key = await asyncssh.get_server_host_key(host.address, host.port, config=None)
    assert key is not None
    return key.get_fingerprint()


async def test_each_host_has_its_own_key_user_and_home(running: list[DemoHost]) -> None:
    one, two = running
    assert await fingerprint(one) != await fingerprint(two)
    assert await say(one, "echo $HOME $USER") == f"{one.home} {one.username}"
    assert await say(two, "pwd") == str(two.home)


async def test_the_fingerprint_that_is_printed_is_the_one_that_is_shown(running: list[DemoHost]) -> None:
    for host in running:
        assert host.key_text == f"ssh-ed25519 {await fingerprint(host)}"
        assert host.key_text in hosts.as_table(running)


async def test_a_host_answers_on_its_own_address_only(running: list[DemoHost]) -> None:
    with pytest.raises(OSError):
        await asyncio.open_connection("127.0.0.1", running[0].port)


async def test_a_wrong_password_and_another_hosts_password_are_refused(running: list[DemoHost]) -> None:
    one, two = running
    for wrong in ("wrong", two.password):
        with pytest.raises(asyncssh.PermissionDenied):
            await log_in(one, password=wrong)


async def test_a_key_added_while_the_host_runs_opens_it(running: list[DemoHost]) -> None:
    host = running[0]
    key = asyncssh.generate_private_key("ssh-ed25519")
    with pytest.raises(asyncssh.PermissionDenied):
        await log_in(host, key=key)
    host.authorized_keys.write_bytes(key.export_public_key())
    (await log_in(host, key=key)).close()


async def test_fingerprint_and_port_stay_over_a_restart(pair: list[DemoHost]) -> None:
    seen = set()
    for _ in range(2):
        async with hosts.serving(pair[0]):
            seen.add((await fingerprint(pair[0]), pair[0].port))
    assert len(seen) == 1


async def test_a_taken_port_is_replaced_and_remembered(pair: list[DemoHost]) -> None:
    host = pair[0]
    async with hosts.serving(host):
        first = host.port
        host.folder.joinpath("port").write_text(str(first))
        async with hosts.serving(host):
            assert host.port != first
            assert await say(host, "echo here") == "here"


async def test_exit_status_input_and_errors_come_through(running: list[DemoHost]) -> None:
    async with await log_in(running[0], password=running[0].password) as client:
        done = await client.run("cat; echo wrong >&2; exit 7", input="given")
    assert (done.stdout, done.stderr, done.exit_status) == ("given", "wrong\n", 7)


async def test_five_megabytes_arrive_whole(running: list[DemoHost]) -> None:
    content = os.urandom(5_000_000)
    async with await log_in(running[0], password=running[0].password) as client:
        done = await client.run("cat > big && wc -c < big", input=content, encoding=None, check=True)
    assert done.stdout is not None and int(done.stdout) == len(content)
    assert (running[0].home / "big").read_bytes() == content


async def test_a_tunnel_leads_to_the_host_itself_and_nowhere_else(running: list[DemoHost]) -> None:
    server = await asyncio.start_server(lambda reader, writer: writer.write(b"hello\n"), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, await log_in(running[0], password=running[0].password) as client:
        reader, writer = await client.open_connection("127.0.0.1", port)
        assert await reader.readline() == b"hello\n"
        writer.close()
        with pytest.raises(asyncssh.ChannelOpenError):
            await client.open_connection(running[1].address, running[1].port)


async def test_a_given_up_command_ends_with_its_children(running: list[DemoHost]) -> None:
    async with await log_in(running[0], password=running[0].password) as client:
        process = await client.create_process("sleep 300 & echo $!; wait")
        child = int((await process.stdout.readline()).strip())
        process.kill()
        await process.wait()
    await asyncio.to_thread(wait_until, lambda: not is_alive(child), "the sleeper is gone")


async def test_a_detached_process_outlives_the_host(pair: list[DemoHost], survivor: list[int]) -> None:
    async with hosts.serving(pair[0]):
        pid = int(await say(pair[0], "setsid sleep 300 > log 2>&1 < /dev/null & echo $!"))
        survivor.append(pid)
    assert is_alive(pid)


async def test_programs_of_the_demo_are_on_the_path_of_each_host(
    running: list[DemoHost], llama_server: Path
) -> None:
    for host in running:
        host.programs.mkdir(exist_ok=True)
        (host.programs / "llama-server").unlink(missing_ok=True)
        (host.programs / "llama-server").symlink_to(llama_server)
        assert "Available devices" in await say(host, "llama-server --list-devices 2>/dev/null")


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False

"""What `--demo=manual` tells a person to do."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from demo import hosts
from demo.drive import by_hand
from inventory.models import Device
from inventory.remote import host_key
from inventory.services import print_command


@pytest.mark.django_db
def test_only_hosts_that_are_not_registered_are_asked_for(tmp_path: Path) -> None:
    lab = hosts.hosts(tmp_path)
    for host in lab:
        hosts.furnish(host)
    text = by_hand(lab)
    assert all(host.password in text and host.key_text in text for host in lab)
    Device.objects.create(name="first", host=lab[0].address)
    assert lab[0].password not in by_hand(lab) and lab[1].password in by_hand(lab)
    for host in lab[1:]:
        Device.objects.create(name=host.name, host=host.address)
    assert by_hand(lab) == "the hosts are ready, and all of them are on the Devices page"


@pytest.mark.skipif(not shutil.which("ssh-keyscan"), reason="OpenSSH's client is not installed")
async def test_the_command_for_an_unusual_port_prints_the_fingerprint(tmp_path: Path) -> None:
    host = hosts.hosts(tmp_path)[0]
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(hosts.serving(host))
        key = host_key(host.public_key)
        command = print_command(key, host.address, host.port)
        printed = await asyncio.to_thread(subprocess.check_output, command, shell=True, text=True)
    assert key.fingerprint in printed

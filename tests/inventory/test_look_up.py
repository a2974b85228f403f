"""Looking a host up while a person waits: in the thread in which the site answers requests, and not for ever."""

from __future__ import annotations

import asyncio
import socket

import pytest
from asgiref.sync import ThreadSensitiveContext, sync_to_async

from inventory import remote, services
from inventory.models import Device, SshIdentity
from inventory.remote import HostKey, RemoteError
from inventory.services import NewDevice, registration
from tests.inventory.test_remote import device_on
from tests.lab.sshd_host import MakeHost

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_request_looks_up_and_adds_a_host_behind_another(
    make_host: MakeHost, identity: SshIdentity
) -> None:
    outer, inner = make_host(), make_host(extra="AllowUsers *@127.0.0.1")
    between = device_on(outer, identity)
    between.save()

    def request() -> tuple[HostKey, Device]:
        way = Device.objects.get(pk=between.pk)
        key = services.look_up(inner.address, inner.port, way)
        new = NewDevice("inner", inner.address, inner.port, inner.username, reached_through=way)
        return key, services.register_device(new, key.line, None, identity=SshIdentity.objects.get())

    async def site() -> tuple[HostKey, Device]:
        async with ThreadSensitiveContext():
            return await sync_to_async(request)()

    key, added = asyncio.run(site())
    assert key == asyncio.run(remote.fetch_host_key(inner.address, inner.port))
    assert added.reached_through == between and Device.objects.get(name="inner").host_key == key.line


def test_a_look_up_ends_and_says_what_it_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "LOOK_UP_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(RemoteError, match=f"127.0.0.1 port {port} showed no key within"):
            services.look_up("127.0.0.1", port)
        assert "showed no key" in str(services.look_up_all([("127.0.0.1", port)])[0])

"""Another way to a device that is known: only after its own key was seen there."""

from __future__ import annotations

import pytest
from django.test import Client

from accounts.models import AuditEntry
from demo.hosts import DemoHost
from inventory import remote
from inventory.models import Device
from tests.inventory.conftest import register

pytestmark = pytest.mark.django_db(transaction=True)


def move(client: Client, device: Device, **typed: object) -> str:
    way = {"host": device.host, "port": device.port, "username": device.username}
    form = way | {"identity": device.identity_id} | typed
    return client.post(f"/devices/{device.pk}/way/", form, follow=True).content.decode()


def test_a_device_is_moved_only_to_where_it_shows_its_own_key(
    admin_client: Client, lab: list[DemoHost]
) -> None:
    device, other = register(lab[0]), lab[1]
    text = move(admin_client, device, host=other.address, port=other.port, username=other.username)
    assert "another machine, or its key was changed" in text
    assert remote.host_key(device.host_key).fingerprint in text
    assert "cannot be reached" in move(admin_client, device, port=9)
    stranger = remote.create_identity("stranger")
    assert "refused our key for the user" in move(admin_client, device, identity=stranger.pk)
    assert Device.objects.get() == device and Device.objects.get().host == lab[0].address
    assert "Saved." in move(admin_client, device, host="127.11")  # another name of 127.0.0.11
    moved = Device.objects.get()
    assert (moved.host, moved.port, moved.address) == ("127.11", lab[0].port, lab[0].address)
    assert AuditEntry.objects.filter(action="device.changed").count() == 1
    assert "Nothing was changed." in move(admin_client, moved)


def test_the_way_of_another_device_is_refused(admin_client: Client, lab: list[DemoHost]) -> None:
    first, second = register(lab[0]), register(lab[1])
    text = move(admin_client, first, host=second.host, port=second.port, username=second.username)
    assert f"is already {second.name}." in text

"""What is changed on a registered device: only what is true of the machine, and saying what follows."""

from __future__ import annotations

import pytest
from django.test import Client
from django.utils import timezone

from inventory.models import Device, Link
from tests.inventory.conftest import GB, HARDWARE


def settings(client: Client, device: Device, **typed: str) -> str:
    form = {"name": device.name, "address": device.address or ""} | typed
    return client.post(f"/devices/{device.pk}/settings/", form, follow=True).content.decode()


def test_a_probe_is_asked_for_only_when_places_changed(admin_client: Client, devices: list[Device]) -> None:
    assert "Nothing was changed." in settings(admin_client, devices[0])
    renamed = settings(admin_client, devices[0], name="attic")
    assert "Saved." in renamed and "new places" not in renamed
    assert "new places" in settings(admin_client, devices[0], name="attic", model_roots="/models")


def test_a_last_day_that_is_over_is_refused(admin_client: Client, devices: list[Device]) -> None:
    assert "2020-01-01 is over" in settings(admin_client, devices[0], available_until="2020-01-01")
    today = f"{timezone.now():%Y-%m-%d}"
    assert "is over" not in settings(admin_client, devices[0], available_until=today)
    Device.objects.update(available_until="2020-01-01")  # kept while something else is changed
    assert "Saved." in settings(admin_client, devices[0], name="attic", available_until="2020-01-01")


def test_another_address_outdates_the_links_of_the_device(
    admin_client: Client, devices: list[Device]
) -> None:
    numbers = {"bytes_per_second": 1e8, "latency_seconds": 1e-3, "measured_at": timezone.now()}
    for source, target in ((0, 1), (1, 0), (1, 2)):
        Link.objects.create(source=devices[source], target=devices[target], method="iperf3", **numbers)
    assert "measure them again" in settings(admin_client, devices[0], address="10.9.0.1")
    settings(admin_client, devices[0], address="10.9.0.2")
    marked = Link.objects.filter(method="iperf3, outdated: an address changed since")
    assert {(one.source, one.target) for one in marked} == {
        (devices[0], devices[1]),
        (devices[1], devices[0]),
    }
    assert (
        "iperf3, outdated: an address changed"
        in admin_client.get(f"/devices/{devices[0].pk}/").content.decode()
    )


@pytest.mark.parametrize("has_gpu", [False, True])
def test_more_memory_than_the_machine_has_is_refused(
    has_gpu: bool, admin_client: Client, devices: list[Device]
) -> None:
    gpu = {"name": "CUDA0", "description": "x", "total_bytes": 24 * GB, "free_bytes": None, "source": "x"}
    hardware = HARDWARE | {"memory_total_bytes": 32 * GB} | ({"gpus": [gpu]} if has_gpu else {})
    Device.objects.update(hardware=hardware)
    path, most = f"/devices/{devices[0].pk}/memory/", 24 if has_gpu else 32
    typed = {"reason": "more was put in", "main_gb": str(most), "ram_gb": "32"}
    refused = admin_client.post(path, typed | {"main_gb": "9999"})
    assert refused.status_code == 422 and f"has {most} GB of this memory in all" in refused.content.decode()
    if has_gpu:
        assert admin_client.post(path, typed | {"ram_gb": "33"}).status_code == 422
    assert admin_client.post(path, typed).status_code == 302
    assert "set by hand: more was put in" in admin_client.get("/devices/").content.decode()


def test_the_list_marks_devices_that_are_one_machine(admin_client: Client, devices: list[Device]) -> None:
    Device.objects.filter(name="box-3").update(hardware=HARDWARE | {"boot_id": "another"})
    page = admin_client.get("/devices/").content.decode()
    assert "Same machine as box-2" in page and "Same machine as box-1" in page
    assert page.count("Same machine") == 2

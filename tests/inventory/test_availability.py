"""When a device may be used, and which of its GPUs."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from typing import Any

import pytest
from django.test import Client

from inventory import runner
from inventory.core.availability import Window
from inventory.core.hardware import usable_memory
from inventory.models import Device, Profile
from planner.from_inventory import device_gap
from tests.inventory.conftest import GB, HARDWARE

MONDAY_NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
WORKDAYS = frozenset(range(5))
YESTERDAY = date(2020, 1, 1)


@pytest.mark.parametrize(
    ("window", "is_open"),
    [
        (Window(), True),
        (Window(WORKDAYS), True),
        (Window(frozenset({5, 6})), False),
        (Window(WORKDAYS, time(9), time(17)), True),
        (Window(WORKDAYS, time(18), time(22)), False),
        (Window(WORKDAYS, time(18), time(13)), False),
        (Window(frozenset({6}), time(18), time(13)), True),
        (Window(until=date(2026, 11, 30)), True),
        (Window(until=date(2026, 11, 29)), False),
    ],
)
def test_hours_hold_by_day_overnight_and_until_a_day(window: Window, is_open: bool) -> None:
    assert (window.closed_reason(MONDAY_NOON) == "") is is_open


def test_the_reason_names_the_hours() -> None:
    reason = Window(frozenset({5, 6}), time(18), time(22)).closed_reason(MONDAY_NOON)
    assert reason == "available Sat, Sun 18:00 to 22:00 UTC only"


def settings_of(device: Device, **changed: Any) -> dict[str, Any]:
    return {"name": device.name, "address": device.address or "", **changed}


def test_plans_leave_out_a_device_whose_last_day_is_over(admin_client: Client, devices: list[Device]) -> None:
    device = devices[0]
    path = f"/devices/{device.pk}/settings/"
    half = settings_of(device, available_from="09:00")
    assert admin_client.post(path, half).status_code == 422
    admin_client.post(path, settings_of(device, available_days=["0", "4"], available_until="2999-01-01"))
    Device.objects.filter(pk=device.pk).update(available_until=YESTERDAY)  # as when the day has passed
    device.refresh_from_db()
    assert device.available_days == "04"
    assert device not in Device.objects.usable() and devices[1] in Device.objects.usable()
    assert "Available until 01 Jan 2020 only" in admin_client.get("/devices/").content.decode()


def test_the_gap_of_a_plan_names_the_hours(profile: Profile) -> None:
    profile.device.available_until = YESTERDAY
    gap = device_gap(profile.device, profile.model, has_profile=True)
    assert gap is not None and gap.what == "availability" and "until 01 Jan 2020" in gap.text


def test_maintenance_takes_a_device_out_of_plans(admin_client: Client, devices: list[Device]) -> None:
    admin_client.post(f"/devices/{devices[0].pk}/maintenance/", {"wanted": "on"})
    assert devices[0] not in Device.objects.usable()


TWO_GPUS = [
    {
        "name": f"CUDA{number}",
        "description": "RTX",
        "total_bytes": size * GB,
        "free_bytes": size * GB,
        "source": "x",
    }
    for number, size in ((0, 8), (1, 24))
]


@pytest.fixture
def with_two_gpus(devices: list[Device]) -> Device:
    device = devices[0]
    device.hardware = HARDWARE | {"gpus": TWO_GPUS}
    device.gpu_usable_bytes = usable_memory(device.hardware).gpu_bytes
    device.save()
    return device


def test_one_gpu_of_several_is_used_and_an_admin_chooses_which(
    admin_client: Client, with_two_gpus: Device, profile: Profile
) -> None:
    path = f"/devices/{with_two_gpus.pk}/"
    profile.made_under = {"main_device": "CUDA0"}
    profile.save()
    assert "plans use this one, the first that llama.cpp lists" in admin_client.get(path).content.decode()
    admin_client.post(f"{path}settings/", settings_of(with_two_gpus, chosen_gpu="CUDA1"))
    device = Device.objects.get(pk=with_two_gpus.pk)
    assert device.main_pool_device == "CUDA1" and (device.gpu_usable_bytes or 0) > 20 * GB
    assert "plans use this one, chosen under Settings" in admin_client.get(path).content.decode()
    profile.refresh_from_db()
    assert profile.stale_reason == "since it was made: another GPU"


def test_a_device_that_was_unplugged_or_restarted_is_probed_again(devices: list[Device]) -> None:
    device = devices[0]
    device.hardware = HARDWARE | {"on_battery": False}
    assert not runner.has_changed(device, "b\nAC 1\n")
    assert not runner.has_changed(device, "b\n")
    assert runner.has_changed(device, "b\nAC 0\n")
    assert runner.has_changed(device, "another\nAC 1\n")

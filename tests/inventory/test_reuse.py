"""A profile of one device standing in for another of its kind: offered, never silent."""

from __future__ import annotations

from django.test import Client

from accounts.models import AuditEntry
from inventory import services
from inventory.models import Device, Profile


def offered(devices: list[Device]) -> list[str]:
    return [offer.device.name for offer in services.reuse_offers()]


def test_a_device_of_the_same_kind_is_offered_the_profile_and_takes_it_on_a_click(
    admin_client: Client, devices: list[Device], profile: Profile
) -> None:
    assert offered(devices) == ["box-2", "box-3"]
    page = admin_client.get("/profiles/").content.decode()
    assert "box-2: tiny as measured on box-1" in page and "Use it for box-2" in page
    assert Profile.objects.count() == 1
    answer = admin_client.post(f"/profiles/{profile.pk}/reuse/", {"device": devices[1].pk}, follow=True)
    assert "box-1, a device of the same kind" in answer.content.decode()
    new = Profile.objects.get(device=devices[1])
    assert new.tables == profile.tables and new.made_under["measured_on"] == "box-1"
    assert AuditEntry.objects.filter(action="profile.reused").exists()
    assert offered(devices) == ["box-3"]


def test_another_processor_or_build_or_power_is_another_kind(devices: list[Device], profile: Profile) -> None:
    Device.objects.filter(pk=devices[1].pk).update(
        hardware=devices[1].hardware | {"cpu_model": "Ryzen 5 2600"}
    )
    Device.objects.filter(pk=devices[2].pk).update(hardware=devices[2].hardware | {"on_battery": True})
    assert offered(devices) == []


def test_a_stale_or_noisy_profile_is_not_offered(devices: list[Device], profile: Profile) -> None:
    Profile.objects.update(residual=0.9)
    assert offered(devices) == []
    Profile.objects.update(residual=0.1, stale_reason="another driver")
    assert offered(devices) == []


def test_what_is_no_longer_on_offer_is_refused_in_words(
    admin_client: Client, devices: list[Device], profile: Profile
) -> None:
    own = {"device": devices[0].pk}
    answer = admin_client.post(f"/profiles/{profile.pk}/reuse/", own, follow=True).content.decode()
    assert "box-1 has a profile of tiny by now" in answer
    assert Profile.objects.count() == 1


def test_a_viewer_takes_no_profile_over(
    viewer_client: Client, devices: list[Device], profile: Profile
) -> None:
    answer = viewer_client.post(f"/profiles/{profile.pk}/reuse/", {"device": devices[1].pk})
    assert answer.status_code == 403 and Profile.objects.count() == 1

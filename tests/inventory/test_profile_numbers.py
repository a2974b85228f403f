"""Numbers of a profile that stand beside each other belong together."""

from __future__ import annotations

import pytest
from django.test import Client

from inventory import charts
from inventory.core.profile import measured_text
from inventory.core.quantities import percent_text
from inventory.models import Profile


def test_the_largest_error_of_a_profile_is_at_least_that_of_its_tables(
    admin_client: Client, profile: Profile
) -> None:
    profile.tables["decode"]["gpu_block_seconds"][0] *= 2
    profile.save()
    shown = [
        row[-1]
        for phase in ("decode", "prefill")
        for row in charts.fit_table_of_profile(profile, phase)["rows"]
    ]
    page = admin_client.get(f"/profiles/{profile.pk}/").content.decode()
    largest = max(shown, key=lambda text: float(text.removesuffix(" %")))
    assert (
        percent_text(profile.off_the_fit) == largest
        and largest in page.split('class="lead"')[1].split("</p>")[0]
    )


def test_the_floor_of_a_table_is_no_measurement() -> None:
    assert (measured_text(1e-7), measured_text(2e-7)) == ("too small to measure", "0.2 µs")


@pytest.mark.parametrize(
    "noisy, label", [([], ">Current<"), (["decode of 1: 2 times apart"], ">Current, noisy<")]
)
def test_the_list_and_the_page_agree_on_noise(
    admin_client: Client, profile: Profile, noisy: list[str], label: str
) -> None:
    profile.made_under |= {"noisy": noisy}
    profile.save()
    assert label in admin_client.get("/profiles/").content.decode()
    page = admin_client.get(f"/profiles/{profile.pk}/").content.decode()
    assert ("Time it again" in page) == bool(noisy)

"""Numbers of a profile that stand beside each other belong together."""

from __future__ import annotations

from dataclasses import replace

import pytest
from django.test import Client

from inventory import charts
from inventory.core.profile import Timing, measured_text
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


def test_two_depths_tell_by_their_rounds_how_far_they_may_be_off(
    admin_client: Client, profile: Profile
) -> None:
    rows = [Timing(**sample) for sample in profile.samples]
    shallow = [one for one in rows if one.blocks in sorted({row.blocks for row in rows})[:2]]
    slower = [replace(one, seconds=1.4 * one.seconds, round=1) for one in shallow]
    profile.samples = [one.to_dict() for one in (*shallow, *slower)]
    profile.save()
    profile = Profile.objects.get(pk=profile.pk)
    assert (profile.error_text, profile.noise_text) == ("rounds up to 40 % apart", "")
    page = admin_client.get("/profiles/").content.decode()
    assert ">Current<" in page and "rounds up to 40 % apart" in page
    slower = [replace(one, seconds=1.7 * one.seconds, round=1) for one in shallow]
    profile.samples = [one.to_dict() for one in (*shallow, *slower)]
    profile.save()
    noisy = Profile.objects.get(pk=profile.pk)
    assert noisy.noise_text.startswith("noisy: ") and "rounds up to 70 % apart" in noisy.noise_text
    assert ">Noisy<" in admin_client.get("/profiles/").content.decode()


def test_three_depths_have_an_error_of_their_own(profile: Profile) -> None:
    deepest = max(sample["blocks"] for sample in profile.samples)
    more = [sample | {"blocks": deepest + 4} for sample in profile.samples if sample["blocks"] == deepest]
    profile.samples += more
    assert profile.has_error and profile.error_text == f"{percent_text(profile.off_the_fit)} off the fit"

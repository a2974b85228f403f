"""Which profiles Plan and deploy goes on with, and what it says of them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from inventory.models import Device, LanguageModel, Profile
from serving.runner.launch import NOISY_HOLDS_FOR, kept_profiles
from tests.planner_app.conftest import devices, model

__all__ = ["devices", "model"]


@pytest.mark.django_db
def test_an_old_noisy_profile_is_timed_again_and_a_new_one_never_said_to_hold(
    model: LanguageModel, devices: list[Device]
) -> None:
    sound, new, old = devices
    now = timezone.now()
    Profile.objects.filter(device=new).update(residual=1.72, measured_at=now)
    Profile.objects.filter(device=old).update(
        residual=1.72, measured_at=now - NOISY_HOLDS_FOR - timedelta(seconds=1)
    )
    kept = kept_profiles(model, devices)
    assert kept[sound.pk] == "its profile still holds"
    assert kept[new.pk].startswith("kept, but noisy: 172 % off the fit; measure again")
    assert old.pk not in kept


@pytest.mark.django_db
def test_a_profile_whose_rounds_lie_apart_is_kept_in_words(
    model: LanguageModel, devices: list[Device]
) -> None:
    Profile.objects.update(made_under={"noisy": ["decode of 1: 2 times apart"]})
    assert all(
        text.startswith("kept, but noisy: rounds of 1 cell")
        for text in kept_profiles(model, devices).values()
    )

"""Profiles that a device could take over from another of its kind."""

from __future__ import annotations

from accounts.models import User
from accounts.services import audit
from inventory import profiling
from inventory.models import Device, Profile
from inventory.profiling import Offer


class CannotReuse(Exception):
    """The profile does not fit the device any more; the text says why."""


def reuse_offers() -> list[Offer]:
    """Devices without a profile of a model that another device of the same kind has."""
    made = Profile.objects.current().select_related("device", "model").order_by("measured_at")
    return profiling.offers(list(made), list(Device.objects.usable()))


def reuse_profile(made: Profile, device: Device, user: User) -> Profile:
    """The same figures for another device, marked as measured elsewhere; CannotReuse when that is not on offer."""
    if not any(
        offer.device == device and offer.profile.model_id == made.model_id for offer in reuse_offers()
    ):
        raise CannotReuse(
            f"{device.name} has a profile of {made.model} by now, or is no longer of the kind of {made.device.name}."
        )
    new = profiling.reuse(made, device)
    audit(user, "profile.reused", f"{new}", {"measured_on": new.made_under["measured_on"]})
    return new

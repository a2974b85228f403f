"""The memory that a plan will need and what the devices lend, before a search."""

from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse

from inventory.core.model_fit import Setting, memory_of
from inventory.core.quantities import bytes_text
from inventory.models import Device, LanguageModel, Profile
from tests.planner_app.conftest import shape
from tests.planner_app.test_pages import form_data

pytestmark = pytest.mark.django_db


def test_the_hint_needs_what_the_models_page_says_and_names_what_is_kept_free(
    page: Client, model: LanguageModel, devices: list[Device]
) -> None:
    made = shape(weight_bytes=24 * 400_000_000 + 200_000_000)
    LanguageModel.objects.update(shape=made.to_dict())
    Device.objects.filter(pk=devices[0].pk).update(gpu_usable_bytes=2 * 10**9, ram_usable_bytes=0)
    Profile.objects.filter(device=devices[0]).update(
        made_under={"memory": {"overhead_bytes": 10**8, "deployment": "tiny #1"}}
    )
    data = form_data(model, devices[:1])
    text = page.get(reverse("planner:hint"), data).content.decode()
    setting = Setting(int(data["context_tokens"]), full_cache=True)
    assert f">{bytes_text(memory_of(made, setting).total_bytes)}</data></strong>" in text
    assert "1.9 GB" in text
    assert "100 MB of Dev.1 are kept free: tiny #1 took more there than predicted." in text


def test_devices_of_one_machine_say_why_they_have_less(
    page: Client, model: LanguageModel, devices: list[Device]
) -> None:
    hardware = {"boot_id": "one", "gpus": []}
    Device.objects.update(hardware=hardware, gpu_usable_bytes=3 * 10**9, ram_usable_bytes=0)
    text = page.get(reverse("planner:hint"), form_data(model, devices)).content.decode()
    assert "3 GB less the part of the other devices that are this machine." in text

"""Models that were stored before their headers were judged, and models whose files are gone."""

from __future__ import annotations

import pytest
from django.test import Client
from django.utils import timezone

from inventory.forms.profile import ProfileForm
from inventory.models import Device, LanguageModel, ModelFile

pytestmark = pytest.mark.django_db


def keep(model: LanguageModel, device: Device) -> None:
    ModelFile.objects.create(
        model=model, device=device, path="/m/tiny.gguf", size_bytes=1, seen_at=timezone.now()
    )


def make_senseless(model: LanguageModel) -> None:
    blocks = [
        {**block, "tensor_bytes": {}, "size_bytes": 0, "resident_bytes": 0, "kv_bytes_per_token": 0}
        for block in model.shape["blocks"]
    ]
    model.shape |= {"blocks": blocks, "weight_bytes": 0, "output_bytes": 0, "embedding_bytes": 0}
    model.save()


def test_a_stored_model_without_weights_is_shown_as_unusable_and_offered_nowhere(
    admin_client: Client, devices: list[Device], model: LanguageModel
) -> None:
    keep(model, devices[0])
    make_senseless(model)
    page = admin_client.get(f"/models/{model.pk}/")
    assert page.status_code == 200 and "It cannot be used." in page.content.decode()
    assert "Profile it" not in page.content.decode() and "Copy it to" not in page.content.decode()
    assert "cannot be used: the file holds no tensors" in admin_client.get("/models/").content.decode()
    assert model not in ProfileForm().fields["model"].queryset  # type: ignore[attr-defined]


def test_a_model_without_a_copy_is_not_offered_for_profiles(
    devices: list[Device], model: LanguageModel
) -> None:
    assert not LanguageModel.objects.usable().exists()
    keep(model, devices[0])
    assert LanguageModel.objects.usable().get() == model


def test_two_copies_on_one_device_are_counted(
    admin_client: Client, devices: list[Device], model: LanguageModel
) -> None:
    keep(model, devices[0])
    ModelFile.objects.create(
        model=model, device=devices[0], path="/m/again.gguf", size_bytes=1, seen_at=timezone.now()
    )
    assert f"{devices[0].name} (2 files)" in admin_client.get("/models/").content.decode()


def test_only_a_model_without_a_copy_is_removed(
    admin_client: Client, viewer_client: Client, devices: list[Device], model: LanguageModel
) -> None:
    path = f"/models/{model.pk}/remove/"
    keep(model, devices[0])
    assert "has copies left" in admin_client.post(path, follow=True).content.decode()
    ModelFile.objects.all().delete()
    assert path in admin_client.get(f"/models/{model.pk}/").content.decode()
    assert viewer_client.post(path).status_code == 403
    admin_client.post(path)
    assert not LanguageModel.objects.exists()


def test_a_context_beyond_the_trained_one_is_warned_of(admin_client: Client, model: LanguageModel) -> None:
    trained = model.shape["context_train"]
    words = "The model was trained for"
    assert words not in admin_client.get(f"/models/{model.pk}/?context={trained}").content.decode()
    assert words in admin_client.get(f"/models/{model.pk}/?context={trained + 1}").content.decode()

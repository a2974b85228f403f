"""What the gateway keeps about the API keys that it accepts."""

from __future__ import annotations

import pytest

from accounts import services
from accounts.models import ApiKey, User
from serving.gateway.errors import ApiError
from serving.gateway.keys import Keyring

pytestmark = pytest.mark.django_db


def test_the_last_use_of_a_key_reaches_its_row(admin: User) -> None:
    key, text = services.create_api_key(admin, "notebook")
    other, _ = services.create_api_key(admin, "unused")
    keyring = Keyring()
    keyring.load()
    keyring.caller(f"Bearer {text}")
    keyring.note_uses()
    assert ApiKey.objects.get(pk=key.pk).last_used_at is not None
    assert ApiKey.objects.get(pk=other.pk).last_used_at is None


def test_a_refused_key_was_not_used(admin: User) -> None:
    key, text = services.create_api_key(admin, "notebook")
    keyring = Keyring()
    keyring.load()
    with pytest.raises(ApiError):
        keyring.caller(f"Bearer {text}x")
    keyring.note_uses()
    assert ApiKey.objects.get(pk=key.pk).last_used_at is None


def test_a_key_that_was_deleted_after_its_use_is_passed_over(admin: User) -> None:
    key, text = services.create_api_key(admin, "notebook")
    keyring = Keyring()
    keyring.load()
    keyring.caller(f"Bearer {text}")
    key.delete()
    keyring.note_uses()
    assert not ApiKey.objects.exists()

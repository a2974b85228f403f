"""Secrets at rest."""

import stat
from pathlib import Path

import pytest
from django.db import connection
from pytest_django.fixtures import Settings

from accounts import vault
from inventory.models import SshIdentity

pytestmark = pytest.mark.django_db


def test_a_secret_is_unreadable_in_the_database_and_plain_in_python() -> None:
    identity = SshIdentity.objects.create(
        name="lab", public_key="ssh-ed25519 AAAA", private_key="canary-secret"
    )
    with connection.cursor() as cursor:
        cursor.execute("select private_key from inventory_sshidentity")
        (stored,) = cursor.fetchone()
    assert "canary" not in stored
    assert SshIdentity.objects.get(pk=identity.pk).private_key == "canary-secret"


def test_the_key_file_is_readable_by_its_owner_alone() -> None:
    vault.create_key_file()
    assert stat.S_IMODE(vault.key_file().stat().st_mode) == 0o600


def test_a_lost_key_file_is_named_with_its_remedy(tmp_path: Path, settings: Settings) -> None:
    settings.DATA_DIR = tmp_path / "elsewhere"
    with pytest.raises(vault.VaultError, match="Restore it from"):
        vault.decrypt("anything")


def test_a_secret_of_another_key_does_not_open(tmp_path: Path, settings: Settings) -> None:
    token = vault.encrypt("secret")
    settings.DATA_DIR = tmp_path / "other"
    vault.create_key_file()
    with pytest.raises(vault.VaultError, match="does not open"):
        vault.decrypt(token)

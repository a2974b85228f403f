"""Signing in, keys, people and the audit log, as a browser asks for them."""

from __future__ import annotations

import re

import pytest
from django.test import Client
from django.urls import reverse

from accounts import services
from accounts.models import ApiKey, AuditEntry, User

pytestmark = pytest.mark.django_db


def signed_in(role: str, name: str = "ada") -> Client:
    client = Client()
    client.force_login(
        User.objects.create(username=name, role=role), backend="django.contrib.auth.backends.ModelBackend"
    )
    return client


def test_opening_a_link_does_not_use_it_up_but_its_button_does() -> None:
    address = reverse("accounts:login_link", args=[services.create_login_link()])
    assert Client().get(address).status_code == 200
    assert Client().post(address).headers["Location"] == "/"
    assert Client().post(address).status_code == 403


def test_a_used_link_says_what_to_do() -> None:
    answer = Client().post(reverse("accounts:login_link", args=["spent"]))
    assert "does not work any more" in answer.content.decode()
    assert "./run up" in answer.content.decode()


def test_a_wrong_password_keeps_the_name_that_was_typed() -> None:
    answer = Client().post(reverse("accounts:login"), {"username": "ada", "password": "wrong"})
    assert answer.status_code == 200
    assert 'value="ada"' in answer.content.decode()


def test_somebody_who_came_by_a_link_can_set_a_password_and_stays_signed_in() -> None:
    client = signed_in("viewer")
    words = "correct horse battery"
    answer = client.post(reverse("accounts:password"), {"new_password1": words, "new_password2": words})
    assert answer.headers["Location"] == reverse("accounts:me")
    assert client.get(reverse("accounts:me")).status_code == 200
    assert User.objects.get(username="ada").check_password(words)


def test_a_new_key_is_shown_once() -> None:
    client = signed_in("viewer")
    answer = client.post(reverse("accounts:keys"), {"name": "notebook", "days": "30"})
    shown = re.search(r"e2k-[\w-]{20,}", answer.content.decode())
    assert shown is not None
    assert shown[0] not in client.get(reverse("accounts:keys")).content.decode()


def test_nobody_revokes_the_key_of_somebody_else_but_an_admin() -> None:
    owner = User.objects.create(username="owner")
    key, _ = services.create_api_key(owner, "theirs")
    address = reverse("accounts:revoke_key", args=[key.pk])
    assert signed_in("operator").post(address).status_code == 404
    assert signed_in("admin", "root").post(address).status_code == 302
    assert not ApiKey.objects.get(pk=key.pk).is_usable()


@pytest.mark.parametrize("name", ["users", "audit"])
def test_people_and_log_are_for_admins(name: str) -> None:
    assert signed_in("operator").get(reverse(f"accounts:{name}")).status_code == 403
    assert signed_in("admin", "root").get(reverse(f"accounts:{name}")).status_code == 200


def test_adding_somebody_gives_a_link_to_pass_on_and_a_row_in_the_log() -> None:
    answer = signed_in("admin").post(reverse("accounts:users"), {"username": "bo", "role": "operator"})
    link = re.search(r"http://testserver(/login/[\w-]+/)", answer.content.decode())
    assert link is not None
    assert Client().post(link[1]).headers["Location"] == "/"
    assert AuditEntry.objects.filter(action="user.added", target="bo").exists()


def test_the_last_admin_cannot_be_demoted() -> None:
    client = signed_in("admin")
    person = User.objects.get(username="ada")
    answer = client.post(reverse("accounts:user", args=[person.pk]), {"role": "viewer", "is_active": "on"})
    assert "only active admin" in answer.content.decode()
    person.refresh_from_db()
    assert person.role == "admin"


def test_the_log_is_searched() -> None:
    services.audit(None, "device.added", "box-1")
    services.audit(None, "model.removed", "smol")
    text = signed_in("admin").get(reverse("accounts:audit"), {"q": "device"}).content.decode()
    assert "box-1" in text
    assert "smol" not in text

"""Signing in, keys, people and the audit log, as a browser asks for them."""

from __future__ import annotations

import re

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from accounts import services
from accounts.models import ApiKey, AuditEntry, LoginLink, User

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


def test_a_dead_link_says_before_any_click_that_it_is_used_ended_or_unknown() -> None:
    used, other = services.create_login_link(), services.create_login_link("bo")
    services.redeem_login_link(used)
    LoginLink.objects.filter(user__username="bo").update(expires_at=timezone.now())
    for token, words in ((used, "was used already"), (other, "has ended"), ("bogus", "not known here")):
        answer = Client().get(reverse("accounts:login_link", args=[token]))
        assert answer.status_code == 403
        assert words in answer.content.decode()
        assert "./run up" in answer.content.decode()
        assert "Your link is ready" not in answer.content.decode()


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


def test_a_new_key_is_shown_once_and_loading_the_page_again_makes_no_second_one() -> None:
    client, address = signed_in("viewer"), reverse("accounts:keys")
    answer = client.post(address, {"name": "notebook", "scopes": "generate", "days": "30"})
    assert (answer.status_code, answer.headers["Location"]) == (302, address)
    shown = re.search(r"e2k-[\w-]{20,}", client.get(address).content.decode())
    assert shown is not None
    assert shown[0] not in client.get(address).content.decode()
    assert ApiKey.objects.count() == 1


def test_a_key_that_waits_to_be_shown_is_not_readable_in_the_session() -> None:
    client = signed_in("viewer")
    client.post(reverse("accounts:keys"), {"name": "notebook", "scopes": "generate", "days": "30"})
    assert "e2k-" not in str(dict(client.session))


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


def test_adding_somebody_gives_a_link_with_which_they_set_a_password() -> None:
    answer = signed_in("admin").post(
        reverse("accounts:users"), {"username": "bo", "role": "operator"}, follow=True
    )
    link = re.search(r"http://testserver(/login/[\w-]+/[?\w-]*)", answer.content.decode())
    assert link is not None
    assert Client().post(link[1]).headers["Location"] == reverse("accounts:password")
    assert AuditEntry.objects.filter(action="user.added", target="bo").exists()


def test_loading_the_page_of_a_link_again_makes_no_second_one() -> None:
    person, client = User.objects.create(username="bo"), signed_in("admin")
    address = reverse("accounts:new_link", args=[person.pk])
    assert client.post(address).headers["Location"] == address
    first = client.get(address).content.decode()
    again = client.get(address).content.decode()
    assert "/login/" in first
    assert "testserver/login/" not in again
    assert LoginLink.objects.filter(user=person).count() == 1


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

"""Log-in links, API keys and the audit log."""

from datetime import timedelta

import pytest
from django.core.exceptions import PermissionDenied
from django.http import HttpResponse
from django.test import RequestFactory
from django.utils import timezone

from accounts import services
from accounts.core.roles import Role
from accounts.models import ApiKey, AuditEntry, LoginLink, User

pytestmark = pytest.mark.django_db


def test_a_login_link_works_once() -> None:
    token = services.create_login_link()
    user = services.redeem_login_link(token)
    assert user is not None and user.role == Role.ADMIN
    assert services.redeem_login_link(token) is None


def test_a_new_link_ends_the_one_before() -> None:
    old = services.create_login_link()
    services.create_login_link()
    assert services.redeem_login_link(old) is None


def test_an_expired_link_logs_nobody_in() -> None:
    token = services.create_login_link()
    LoginLink.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert services.redeem_login_link(token) is None


def test_the_first_admin_has_no_usable_password() -> None:
    services.create_login_link()
    assert not User.objects.get().has_usable_password()


def test_the_database_does_not_hold_the_api_key() -> None:
    user = User.objects.create(username="ada", role=Role.ADMIN)
    key, text = services.create_api_key(user, "notebook")
    stored = " ".join(str(value) for value in ApiKey.objects.values_list().get(pk=key.pk))
    assert text not in stored and text.startswith(key.prefix)


def test_an_internal_key_names_its_user_until_it_expires() -> None:
    user = User.objects.create(username="ada", role=Role.ADMIN)
    assert services.internal_key_user_id(services.internal_key(user)) == user.pk
    assert services.internal_key_user_id(services.internal_key(user, lifetime_seconds=-1)) is None


@pytest.mark.parametrize("text", ["", "e2i-", "e2i-1.9999999999.aaaaaaaa.00", "e2i-1.x.y.z", "e2k-abc"])
def test_a_forged_internal_key_names_nobody(text: str) -> None:
    assert services.internal_key_user_id(text) is None


@pytest.mark.parametrize(
    ("role", "passes"), [("viewer", False), ("operator", True), ("admin", True), ("", False)]
)
def test_a_view_for_operators_refuses_lesser_roles(role: str, passes: bool) -> None:
    view = services.operator_required(lambda request: HttpResponse("done"))
    request = RequestFactory().post("/")
    request.user = User(username="ada", role=role)
    if passes:
        assert view(request).content == b"done"
    else:
        with pytest.raises(PermissionDenied, match="role operator"):
            view(request)


def test_the_audit_log_keeps_the_name_of_a_deleted_user() -> None:
    user = User.objects.create(username="ada", role=Role.ADMIN)
    services.audit(user, "device.added", "box-1", {"host": "10.0.0.1"})
    user.delete()
    entry = AuditEntry.objects.get()
    assert (entry.username, entry.user, entry.action) == ("ada", None, "device.added")

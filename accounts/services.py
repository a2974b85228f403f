"""Log-in links, API keys, rights and the audit log."""

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime, timedelta
from enum import StrEnum
from functools import wraps
from typing import Any, TypeVar, cast

from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils import timezone

from accounts import vault
from accounts.core.key_terms import UNLIMITED, KeyTerms
from accounts.core.roles import Role
from accounts.models import ApiKey, AuditEntry, LoginLink, User

LOGIN_LINK_LIFE = timedelta(hours=24)
KEY_MARK = "e2k-"
INTERNAL_MARK = "e2i-"
INTERNAL_KEY_SECONDS = 3600
SHOWN_ONCE = "shown_once."

View = TypeVar("View", bound=Callable[..., HttpResponseBase])


class LinkRefusal(StrEnum):
    UNKNOWN = "unknown"
    USED = "used"
    EXPIRED = "expired"


def create_login_link(username: str = "admin") -> str:
    """Token of a fresh one-time link for an admin, who is created when missing; older links end."""
    user, created = User.objects.get_or_create(username=username, defaults={"role": Role.ADMIN})
    if created:
        user.set_unusable_password()
        user.save()
    token = secrets.token_urlsafe(32)
    LoginLink.objects.filter(user=user, used_at=None).delete()
    LoginLink.objects.create(user=user, digest=_sha256(token), expires_at=timezone.now() + LOGIN_LINK_LIFE)
    return token


def refusal_of_link(token: str) -> LinkRefusal | None:
    """Why the token logs nobody in, found without using it up; None while it does."""
    link = LoginLink.objects.filter(digest=_sha256(token)).select_related("user").first()
    if link is None or not link.user.is_active:
        return LinkRefusal.UNKNOWN
    if link.used_at is not None:
        return LinkRefusal.USED
    return None if link.is_usable() else LinkRefusal.EXPIRED


def redeem_login_link(token: str) -> User | None:
    """The user whom the token logs in, once; None when it is unknown, used or expired."""
    with transaction.atomic():
        link = LoginLink.objects.select_for_update().filter(digest=_sha256(token)).first()
        if link is None or not link.is_usable() or not link.user.is_active:
            return None
        link.used_at = timezone.now()
        link.save(update_fields=["used_at"])
        return link.user


def create_api_key(
    user: User, name: str, *, terms: KeyTerms = UNLIMITED, days: int | None = None
) -> tuple[ApiKey, str]:
    """A new key and its text, which is not stored and cannot be shown again."""
    text = KEY_MARK + secrets.token_urlsafe(32)
    pepper = vault.pepper_id()
    key = ApiKey.objects.create(
        user=user,
        name=name,
        prefix=text[:12],
        digest=vault.peppered_digest(text, pepper),
        pepper=pepper,
        expires_at=timezone.now().replace(second=0, microsecond=0) + timedelta(days=days) if days else None,
        **_columns(terms),
    )
    return key, text


def change_api_key(key: ApiKey, name: str, terms: KeyTerms, expires_at: datetime | None) -> dict[str, Any]:
    """Save what changed and tell it, before and after, for the audit log; empty when nothing did."""
    if _minute(expires_at) == _minute(key.expires_at):
        expires_at = key.expires_at
    wanted = {"name": name, "expires_at": expires_at, **_columns(terms)}
    changed = {field: value for field, value in wanted.items() if getattr(key, field) != value}
    if not changed:
        return {}
    before = {field: audited(field, getattr(key, field)) for field in changed}
    for field, value in changed.items():
        setattr(key, field, value)
    key.save(update_fields=list(changed))
    return {"before": before, "after": {field: audited(field, value) for field, value in changed.items()}}


def _minute(at: datetime | None) -> datetime | None:
    """A form field holds minutes."""
    return at.replace(second=0, microsecond=0) if at else None


def _columns(terms: KeyTerms) -> dict[str, Any]:
    return {**asdict(terms), "scopes": list(map(str, terms.scopes)), "model_names": list(terms.model_names)}


def audited(field: str, value: Any) -> Any:
    """A term of a key as the audit log tells it."""
    if field == "expires_at":
        return value.isoformat() if value else "never"
    if field == "model_names":
        return list(value) or "all models"
    if field in {"max_concurrent", "tokens_per_minute"}:
        return value or "no limit"
    return value


def revoke_api_key(key: ApiKey) -> None:
    key.revoked_at = timezone.now()
    key.save(update_fields=["revoked_at"])


def internal_key(user: User, lifetime_seconds: int = INTERNAL_KEY_SECONDS) -> str:
    """A short-lived signed key with which our own pages call the gateway on behalf of `user`."""
    body = f"{user.pk}.{int(time.time()) + lifetime_seconds}"
    pepper = vault.pepper_id()
    return f"{INTERNAL_MARK}{body}.{pepper}.{vault.peppered_digest(INTERNAL_MARK + body, pepper)}"


def internal_key_user_id(text: str) -> int | None:
    """Id of the user behind an internal key; None when it is malformed, forged or expired."""
    parts = text.removeprefix(INTERNAL_MARK).split(".")
    if not text.startswith(INTERNAL_MARK) or len(parts) != 4 or not (parts[0] + parts[1]).isdigit():
        return None
    user_id, expires, pepper, signature = parts
    try:
        expected = vault.peppered_digest(f"{INTERNAL_MARK}{user_id}.{expires}", pepper)
    except vault.VaultError:
        return None
    if not hmac.compare_digest(expected.encode(), signature.encode()) or int(expires) < time.time():
        return None
    return int(user_id)


def show_once(request: HttpRequest, name: str, text: str) -> None:
    """Keep a secret in the session, encrypted, for the page that the answer to this form redirects to."""
    request.session[SHOWN_ONCE + name] = vault.encrypt(text)


def take_shown(request: HttpRequest, name: str) -> str | None:
    """The secret kept for this page; it is gone with the first look."""
    kept = request.session.pop(SHOWN_ONCE + name, None)
    return None if kept is None else vault.decrypt(kept)


def audit(
    user: User | None,
    action: str,
    target: object = "",
    detail: dict[str, Any] | None = None,
    address: str = "",
) -> None:
    """Add one row to the audit log."""
    AuditEntry.objects.create(
        user=user,
        username=user.username if user else "",
        address=address,
        action=action,
        target=str(target)[:200],
        detail=detail or {},
    )


def client_address(request: HttpRequest) -> str:
    return str(request.META.get("REMOTE_ADDR", ""))[:45]


def _needs(role: Role) -> Callable[[View], View]:
    def decorate(view: View) -> View:
        @wraps(view)
        def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            if not isinstance(request.user, User) or not request.user.may(role):
                raise PermissionDenied(f"This needs the role {role.value}; ask an admin for it.")
            return view(request, *args, **kwargs)

        return cast(View, guarded)

    return decorate


operator_required = _needs(Role.OPERATOR)
admin_required = _needs(Role.ADMIN)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()

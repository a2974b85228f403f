"""Who calls: API keys in memory, refreshed by push, checked without a database query per request."""

from __future__ import annotations

import hmac
import time
from dataclasses import dataclass
from datetime import datetime

from django.db import DatabaseError
from django.utils import timezone

from accounts import services, vault
from accounts.core.key_terms import EVERYTHING, NO_LIMIT, Scope
from accounts.models import ApiKey, User
from serving.gateway.errors import ApiError

PREFIX_CHARACTERS = 12
KNOWN_TEXTS = 1024  # digests kept, so that a key is hashed once and not for every request


@dataclass(frozen=True)
class Caller:
    """Whose request it is; `key` is what the queue is fair between."""

    key: str
    key_id: int | None
    user_id: int
    max_concurrent: int
    tokens_per_minute: int = NO_LIMIT
    scopes: frozenset[str] = frozenset(EVERYTHING)
    models: frozenset[str] = frozenset()

    @property
    def is_playground(self) -> bool:
        return self.key_id is None

    def check_scope(self, scope: Scope) -> None:
        """403 when the key is not for this."""
        if scope not in self.scopes:
            may = ", ".join(sorted(self.scopes))
            raise ApiError(403, "scope_missing", f"this needs the scope {scope.value}; this key has: {may}")

    def may_use(self, model: str) -> bool:
        return not self.models or model in self.models

    def check_model(self, model: str) -> None:
        """403 when the key is for other models."""
        if not self.may_use(model):
            named = ", ".join(sorted(self.models))
            raise ApiError(
                403, "model_not_allowed", f"this key may use {named}, not {model!r}", param="model"
            )


@dataclass(frozen=True)
class StoredKey:
    caller: Caller
    digest: str
    pepper: str
    expires_at: float | None


class Keyring:
    """All usable keys; `load` replaces them as a whole."""

    def __init__(self) -> None:
        self._stored: dict[str, StoredKey] = {}
        self._active_users: frozenset[int] = frozenset()
        self._digests: dict[tuple[str, str], str] = {}
        self._used_at: dict[int, datetime] = {}

    def load(self) -> None:
        """Read keys and users from the database."""
        stored = {}
        for key in ApiKey.objects.select_related("user").filter(revoked_at=None, user__is_active=True):
            if key.expires_at is not None and key.expires_at <= timezone.now():
                continue
            caller = Caller(
                key=f"key {key.pk}",
                key_id=key.pk,
                user_id=key.user_id,
                max_concurrent=key.max_concurrent,
                tokens_per_minute=key.tokens_per_minute,
                scopes=frozenset(key.scopes),
                models=frozenset(key.model_names),
            )
            expires_at = key.expires_at.timestamp() if key.expires_at else None
            stored[key.prefix] = StoredKey(caller, key.digest, key.pepper, expires_at)
        self._stored = stored
        self._active_users = frozenset(User.objects.filter(is_active=True).values_list("pk", flat=True))

    def note_uses(self) -> None:
        """Write when each key was last used since the call before; a key deleted meanwhile is passed over."""
        used, self._used_at = self._used_at, {}
        keys = [ApiKey(pk=key_id, last_used_at=at) for key_id, at in used.items()]
        try:
            ApiKey.objects.bulk_update(keys, ["last_used_at"])
        except DatabaseError:
            self._used_at = used | self._used_at
            raise

    def caller(self, authorization: str) -> Caller:
        """The caller behind an Authorization header, or a 401."""
        scheme, _, text = authorization.partition(" ")
        text = text.strip()
        if scheme.lower() != "bearer" or not text:
            raise ApiError(401, "missing_api_key", "send your key as 'Authorization: Bearer <key>'")
        caller = (
            self._internal(text) if text.startswith(services.INTERNAL_MARK) else self._stored_caller(text)
        )
        if caller is None:
            raise ApiError(401, "invalid_api_key", "this key is not known, or was revoked, or has expired")
        if caller.key_id is not None:
            self._used_at[caller.key_id] = timezone.now()
        return caller

    def _internal(self, text: str) -> Caller | None:
        user_id = services.internal_key_user_id(text)
        if user_id is None or user_id not in self._active_users:
            return None
        return Caller(f"user {user_id}", None, user_id, 0)

    def _stored_caller(self, text: str) -> Caller | None:
        key = self._stored.get(text[:PREFIX_CHARACTERS])
        if key is None or (key.expires_at is not None and key.expires_at <= time.time()):
            return None
        if not hmac.compare_digest(self._digest(text, key.pepper), key.digest):
            return None
        return key.caller

    def _digest(self, text: str, pepper: str) -> str:
        if len(self._digests) > KNOWN_TEXTS:
            self._digests.clear()
        if (text, pepper) not in self._digests:
            self._digests[text, pepper] = vault.peppered_digest(text, pepper)
        return self._digests[text, pepper]

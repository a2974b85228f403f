"""What waits in the session until a person has compared fingerprints: one entry for every page that shows some."""

from __future__ import annotations

import secrets
from typing import Any

from django.http import HttpRequest

from accounts import vault

SLOT = "shown_fingerprints"
MOST_KEPT = 8


def keep(request: HttpRequest, typed: dict[str, Any], shown: Any, password: str) -> str:
    """The word that the page's address carries: its click can take this entry and no other.

    The password is encrypted there and gone with the click.
    """
    word = secrets.token_urlsafe(16)
    secret = vault.encrypt(password) if password else ""
    entries = {**request.session.get(SLOT, {}), word: {"typed": typed, "shown": shown, "password": secret}}
    request.session[SLOT] = dict(list(entries.items())[-MOST_KEPT:])
    return word


def shown(request: HttpRequest, word: str) -> Any:
    """What the page of this word shows; None when its click was made already or it is no longer remembered."""
    return request.session.get(SLOT, {}).get(word, {}).get("shown")


def typed(request: HttpRequest, word: str) -> dict[str, Any] | None:
    """What was typed for it, without the password, also after the click; None when it is no longer remembered."""
    found = request.session.get(SLOT, {}).get(word)
    return None if found is None else found["typed"]


def take_password(request: HttpRequest, word: str) -> str:
    """The password of an entry that is clicked now; afterwards only what was typed is left of it."""
    entry = request.session[SLOT][word]
    secret, entry["password"], entry["shown"] = entry["password"], "", None
    request.session.modified = True
    return vault.decrypt(secret) if secret else ""

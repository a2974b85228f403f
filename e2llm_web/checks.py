"""What `manage.py check` says about this installation beyond Django's own checks."""

import sqlite3
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register

OLDEST_SQLITE = (3, 37, 0)


@register(Tags.database)
def sqlite_is_new_enough(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    if sqlite3.sqlite_version_info >= OLDEST_SQLITE:
        return []
    return [
        Error(
            f"SQLite {sqlite3.sqlite_version} is too old; 3.37 or newer is needed.",
            hint="Use a newer Python or system, or set DATABASE_URL to a PostgreSQL.",
            id="e2llm.E001",
        )
    ]


@register(Tags.security)
def private_files_are_private(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Keys that others on this machine can read are no secrets."""
    messages: list[CheckMessage] = []
    for name in ("secret.key", "vault.keys"):
        path = settings.DATA_DIR / name
        if path.exists() and path.stat().st_mode & 0o077:
            mode = path.stat().st_mode & 0o777
            hint = f"chmod 600 {path}, and replace the key if others had a login here."
            messages.append(
                Error(f"{path} is readable by others (mode {mode:o}).", hint=hint, id="e2llm.E002")
            )
    return messages


@register(Tags.security, deploy=True)
def open_hosts_use_https(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    if settings.HTTPS or not settings.HOSTS:
        return []
    return [
        Warning(
            f"The site answers for {', '.join(settings.HOSTS)} over plain HTTP: passwords and keys can be read.",
            hint="Put a proxy with TLS in front and set E2LLM_HTTPS=1 (docs/operations.md).",
            id="e2llm.W001",
        )
    ]

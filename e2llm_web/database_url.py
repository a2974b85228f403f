"""DATABASE_URL -> Django's DATABASES entry; without one, SQLite in the data folder."""

from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured

SQLITE_PRAGMAS = "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA temp_store=MEMORY;"


def database(url: str, data_folder: Path) -> dict[str, Any]:
    return postgresql(url) if url else sqlite(data_folder)


def sqlite(data_folder: Path) -> dict[str, Any]:
    """IMMEDIATE takes the write lock when a transaction begins, so two writers wait instead of failing half way."""
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(data_folder / "e2llm.sqlite3"),
        "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20, "init_command": SQLITE_PRAGMAS},
        "TEST": {"NAME": str(data_folder / "test.sqlite3")},
    }


def postgresql(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    name = unquote(parts.path.removeprefix("/"))
    if parts.scheme not in {"postgres", "postgresql"} or not name:
        raise ImproperlyConfigured(
            "DATABASE_URL must look like postgresql://user:password@host:5432/name; "
            f"its scheme is {parts.scheme!r} and its database name {name!r}."
        )
    options = dict(parse_qsl(parts.query))
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": name,
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": options.pop("host", parts.hostname or ""),
        "PORT": str(parts.port or ""),
        "OPTIONS": options,
    }

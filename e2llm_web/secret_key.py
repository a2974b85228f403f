"""Django's signing key: random, made at the first start, readable by the owner alone."""

import os
import secrets
from pathlib import Path


def secret_key(path: Path) -> str:
    """The key in `path`, which is written first when it is not there; two processes starting at once get the same."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = path.with_suffix(f".{os.getpid()}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(64))
        try:
            os.link(draft, path)
        except FileExistsError:
            pass
        draft.unlink()
    return path.read_text()

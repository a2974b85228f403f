"""The way out of the site: a signed POST to a webhook, and mail as the settings say."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import time
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.mail import send_mail

TIMEOUT_SECONDS = 5.0
SIGNATURE_HEADER = "X-E2LLM-Signature"
TIMESTAMP_HEADER = "X-E2LLM-Timestamp"


class NotDelivered(Exception):
    """The message did not arrive; the text says why."""


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """HMAC-SHA256 of timestamp, a dot and the body, so that an old message cannot be sent again as a new one."""
    return hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()


def post(url: str, secret: str, content: dict[str, Any], now: float | None = None) -> int:
    """Send the content as signed JSON; the status of the answer, or NotDelivered. A redirect is not followed."""
    body = json.dumps(content).encode()
    timestamp = str(int(time.time() if now is None else now))
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "e2llm-web",
        TIMESTAMP_HEADER: timestamp,
        SIGNATURE_HEADER: f"sha256={signature(secret, timestamp, body)}",
    }
    target = urlsplit(url)
    kind = http.client.HTTPSConnection if target.scheme == "https" else http.client.HTTPConnection
    path = (target.path or "/") + (f"?{target.query}" if target.query else "")
    try:
        connection = kind(target.hostname or "", target.port, timeout=TIMEOUT_SECONDS)
        try:
            connection.request("POST", path, body, headers)
            status = connection.getresponse().status
        finally:
            connection.close()
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise NotDelivered(f"{target.netloc} was not reached: {words(error)}") from None
    if not 200 <= status < 300:
        raise NotDelivered(f"{target.netloc} answered with {status}")
    return status


def mail_is_set_up() -> bool:
    return bool(settings.EMAIL_HOST)


def mail(addresses: list[str], subject: str, text: str) -> None:
    """Send one mail to all, or NotDelivered."""
    if not mail_is_set_up():
        raise NotDelivered("No mail server is set. Set E2LLM_EMAIL_HOST and start the site again.")
    try:
        send_mail(subject, text, None, addresses)
    except OSError as error:
        raise NotDelivered(f"{settings.EMAIL_HOST} did not take the mail: {words(error)}") from None


def words(error: Exception) -> str:
    """What the system calls the error, without its number."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__

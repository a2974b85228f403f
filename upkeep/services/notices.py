"""Messages about alerts on their way: each tried a few times, the reason kept when it does not arrive."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from upkeep import delivery
from upkeep.delivery import NotDelivered
from upkeep.models import Alert, AlertRules, Notice

MOST_TRIES = 6
FIRST_PAUSE = timedelta(seconds=30)  # doubled after every try
HELD = timedelta(minutes=2)  # by the worker that sends it now
TEST_TITLE = "This is a test"


def deliver(now: datetime | None = None) -> None:
    """Send what is due."""
    at = now or timezone.now()
    rules = AlertRules.current()
    for notice in Notice.objects.filter(due_at__lte=at).select_related("alert"):
        mine = Notice.objects.filter(pk=notice.pk, due_at=notice.due_at).update(due_at=at + HELD)
        if mine:
            attempt(notice, rules, at)


def attempt(notice: Notice, rules: AlertRules, now: datetime) -> None:
    notice.tries += 1
    try:
        send(notice.way, rules, content_of(notice.alert, notice.event))
    except NotDelivered as error:
        notice.error = str(error)[:300]
        pause = FIRST_PAUSE * 2 ** (notice.tries - 1)
        notice.due_at = None if notice.tries >= MOST_TRIES else now + pause
    else:
        notice.error, notice.due_at, notice.sent_at = "", None, now
    notice.save()


def send(way: str, rules: AlertRules, content: dict[str, Any]) -> None:
    if way == Notice.Ways.WEBHOOK:
        if not rules.webhook_url:
            raise NotDelivered("The webhook was taken out of the settings.")
        delivery.post(rules.webhook_url, rules.webhook_secret, content)
    else:
        delivery.mail(rules.emails, mail_subject(content), mail_text(content))


def content_of(alert: Alert, event: str) -> dict[str, Any]:
    """The body of the webhook; docs/operations.md names its fields."""
    return {
        "event": f"alert.{event}",
        "alert": {
            "id": alert.pk,
            "kind": alert.kind,
            "subject": alert.subject,
            "title": alert.title,
            "text": alert.text,
            "path": alert.path,
            "began_at": alert.began_at.isoformat(),
            "resolved_at": alert.resolved_at.isoformat() if alert.resolved_at else None,
        },
    }


def mail_subject(content: dict[str, Any]) -> str:
    over = "Over: " if content["event"] == "alert.resolved" else ""
    return f"[E2LLM] {over}{' '.join(content['alert']['title'].split())}"


def mail_text(content: dict[str, Any]) -> str:
    alert = content["alert"]
    times = f"Since {alert['began_at']}."
    if alert["resolved_at"]:
        times = f"From {alert['began_at']} to {alert['resolved_at']}."
    return f"{alert['title']}\n\n{alert['text']}\n\n{times}\nOn the site: {alert['path']}\n"


def send_test(way: str, rules: AlertRules) -> None:
    """A message of the same kind with nothing behind it, at once; NotDelivered when it does not arrive."""
    now = timezone.now()
    alert = Alert(
        pk=0, kind="test", subject="test", title=TEST_TITLE, text="An admin asked for it.", path="/alerts/",
        began_at=now, last_seen_at=now,
    )  # fmt: skip
    send(way, rules, content_of(alert, "test"))

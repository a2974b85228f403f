"""Alerts as rows: opened once, kept while they last, resolved when they are over, told to whom it was asked for."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from django.db import transaction
from django.utils import timezone

from accounts.services import audit
from upkeep.models import Alert, AlertRules, Notice
from upkeep.services.findings import Finding, findings

OVER_AFTER = timedelta(seconds=60)  # what flickers stays one alert


def watch(now: datetime | None = None) -> None:
    """Look once at everything that the rules name."""
    at = now or timezone.now()
    rules = AlertRules.current()
    note(findings(rules, at), rules, at)


@transaction.atomic
def note(found: Iterable[Finding], rules: AlertRules, now: datetime) -> None:
    """Open what is new, keep what is known, resolve what has not been seen for a while."""
    known = {(alert.kind, alert.subject): alert for alert in Alert.objects.filter(resolved_at=None)}
    for finding in found:
        alert = known.pop((finding.kind, finding.subject), None)
        if alert is None:
            opened(finding, rules, now)
        else:
            Alert.objects.filter(pk=alert.pk).update(
                last_seen_at=now, title=finding.title[:200], text=finding.text
            )
    for alert in known.values():
        if now - alert.last_seen_at >= OVER_AFTER:
            resolved(alert, rules, now)


def opened(finding: Finding, rules: AlertRules, now: datetime) -> None:
    alert = Alert.objects.create(
        kind=finding.kind,
        subject=finding.subject,
        title=finding.title[:200],
        text=finding.text,
        path=finding.path,
        began_at=now,
        last_seen_at=now,
    )
    audit(None, "alert.opened", alert)
    tell(alert, Notice.Events.OPENED, rules, now)


def resolved(alert: Alert, rules: AlertRules, now: datetime) -> None:
    alert.resolved_at = now
    alert.save(update_fields=["resolved_at"])
    audit(None, "alert.resolved", alert)
    tell(alert, Notice.Events.RESOLVED, rules, now)


def tell(alert: Alert, event: Notice.Events, rules: AlertRules, now: datetime) -> None:
    """Put a message on its way by each way that is set up."""
    ways = [(Notice.Ways.WEBHOOK, rules.webhook_url), (Notice.Ways.EMAIL, rules.emails)]
    Notice.objects.bulk_create(
        Notice(alert=alert, way=way, event=event, due_at=now) for way, target in ways if target
    )


def open_count() -> int:
    return Alert.objects.filter(resolved_at=None).count()

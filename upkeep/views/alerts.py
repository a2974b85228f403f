"""Alerts: what is open and what was, and the rules that an admin sets."""

from __future__ import annotations

import secrets

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from accounts.services import admin_required, audit, client_address, show_once, take_shown
from serving.views.deployments import person
from upkeep import delivery
from upkeep.forms import AlertRulesForm
from upkeep.models import Alert, AlertRules, Notice
from upkeep.services import notices

PAGE_SIZE = 50
NEW_SECRET = "webhook_secret"  # noqa: S105  the name of what is shown, no password


@require_GET
def index(request: HttpRequest) -> HttpResponse:
    page = Paginator(Alert.objects.prefetch_related("notices"), PAGE_SIZE).get_page(request.GET.get("page"))
    return render(request, "upkeep/alerts.html", {"page": page})


@never_cache
@require_http_methods(["GET", "POST"])
@admin_required
def rules(request: HttpRequest) -> HttpResponse:
    form = AlertRulesForm(request.POST or None, instance=AlertRules.current())
    if request.method == "POST" and form.is_valid():
        saved = form.save()
        if saved.webhook_url and not saved.webhook_secret:
            new_secret(request, saved)
        audit(person(request), "alerts.changed", "alerts", told(saved), client_address(request))
        messages.success(request, "The rules are saved. They are looked at every 10 s.")
        return redirect("upkeep:rules")
    context = {
        "form": form,
        "rules": AlertRules.current(),
        "new_secret": take_shown(request, NEW_SECRET) if request.method == "GET" else None,
        "has_mail": delivery.mail_is_set_up(),
        "failed": Notice.objects.exclude(error="").select_related("alert").order_by("-pk")[:5],
    }
    return render(request, "upkeep/rules.html", context)


def told(saved: AlertRules) -> dict[str, object]:
    """What the audit log keeps: no address of a webhook, since people put secrets into those."""
    names = ("queue_longer_than", "queue_seconds", "wait_p95_seconds", "disk_free_bytes", "watches_replicas")
    told: dict[str, object] = {name: getattr(saved, name) for name in (*names, "watches_devices")}
    return told | {"webhook": bool(saved.webhook_url), "email_to": saved.email_to}


def new_secret(request: HttpRequest, saved: AlertRules) -> None:
    saved.webhook_secret = secrets.token_urlsafe(32)
    saved.save(update_fields=["webhook_secret"])
    show_once(request, NEW_SECRET, saved.webhook_secret)


@require_POST
@admin_required
def secret(request: HttpRequest) -> HttpResponse:
    """A new key for the signatures; the old one is worth nothing from now on."""
    saved = AlertRules.current()
    if saved.webhook_url:
        new_secret(request, saved)
        audit(person(request), "alerts.secret_renewed", "alerts", address=client_address(request))
    return redirect("upkeep:rules")


@require_POST
@admin_required
def test(request: HttpRequest) -> HttpResponse:
    """Send a test by one way now, and say how that went."""
    way = request.POST.get("way", "")
    if way not in Notice.Ways:
        messages.error(request, "Choose what to test: the webhook or the mail.")
        return redirect("upkeep:rules")
    try:
        notices.send_test(way, AlertRules.current())
    except delivery.NotDelivered as error:
        messages.error(request, f"The test did not arrive. {error}.")
    else:
        messages.success(request, f"The test was taken by the {Notice.Ways(way).label.lower()}'s server.")
    audit(person(request), "alerts.tested", way, address=client_address(request))
    return redirect("upkeep:rules")

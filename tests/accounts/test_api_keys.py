"""The page of one API key: what it may do is seen, changed and written to the log, by its owner or an admin."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from accounts import services
from accounts.core.key_terms import KeyTerms
from accounts.models import ApiKey, AuditEntry, User

pytestmark = pytest.mark.django_db
FORM: dict[str, Any] = {
    "name": "notebook",
    "scopes": ["generate", "tokenize"],
    "model_names": "tiny\n other \ntiny\n",
    "max_concurrent": "2",
    "tokens_per_minute": "5000",
    "expires_at": "",
}


def page_of(key: ApiKey) -> str:
    return reverse("accounts:key", args=[key.pk])


def client_of(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def test_a_key_is_made_with_its_terms_and_the_log_has_them(viewer_client: Client) -> None:
    made = {**FORM, "days": "30"}
    assert viewer_client.post(reverse("accounts:keys"), made).status_code == 302
    key = ApiKey.objects.get()
    assert key.terms == KeyTerms(("generate", "tokenize"), ("tiny", "other"), 2, 5000)
    detail = AuditEntry.objects.get(action="api_key.created").detail
    assert (detail["scopes"], detail["tokens_per_minute"]) == (["generate", "tokenize"], 5000)
    text = viewer_client.get(reverse("accounts:keys")).content.decode()
    assert "only generate, tokenize; tiny, other; 2 at once; 5,000 tokens/min" in text


def test_a_key_that_may_do_nothing_is_not_made(viewer_client: Client) -> None:
    answer = viewer_client.post(reverse("accounts:keys"), {**FORM, "scopes": []})
    assert "Tick at least one" in answer.content.decode()
    assert not ApiKey.objects.exists()


def test_a_change_is_saved_and_logged_before_and_after(viewer: User, viewer_client: Client) -> None:
    key, _ = services.create_api_key(viewer, "notebook", days=30)
    end = (timezone.now() + timedelta(days=3)).replace(second=0, microsecond=0)
    sent = {**FORM, "expires_at": end.strftime("%Y-%m-%dT%H:%M")}
    assert viewer_client.post(page_of(key), sent).headers["Location"] == page_of(key)
    key.refresh_from_db()
    assert key.terms == KeyTerms(("generate", "tokenize"), ("tiny", "other"), 2, 5000)
    assert key.expires_at == end
    detail = AuditEntry.objects.get(action="api_key.changed").detail
    assert detail["before"]["tokens_per_minute"] == "no limit"
    assert detail["before"]["model_names"] == "all models"
    assert detail["after"]["tokens_per_minute"] == 5000
    assert "name" not in detail["after"]


def test_saving_without_a_change_is_no_entry_in_the_log(viewer: User, viewer_client: Client) -> None:
    key, _ = services.create_api_key(viewer, "notebook", days=30)
    shown = viewer_client.get(page_of(key)).context["form"]
    sent = {name: shown[name].value() for name in shown.fields}
    sent["expires_at"] = sent["expires_at"].strftime("%Y-%m-%dT%H:%M")
    viewer_client.post(page_of(key), sent)
    assert not AuditEntry.objects.filter(action="api_key.changed").exists()


def test_the_end_of_a_key_is_shown_without_seconds_so_that_any_minute_is_accepted(
    viewer: User, viewer_client: Client
) -> None:
    key, _ = services.create_api_key(viewer, "notebook", days=30)
    ApiKey.objects.update(expires_at=timezone.now() + timedelta(days=3))
    key.refresh_from_db()
    assert key.expires_at is not None
    assert f'value="{key.expires_at:%Y-%m-%dT%H:%M}"' in viewer_client.get(page_of(key)).text


def test_a_new_key_reads_no_figures_unless_that_is_ticked(viewer_client: Client) -> None:
    form = viewer_client.get(reverse("accounts:keys")).context["form"]
    assert form["scopes"].value() == ["generate", "embed", "tokenize"]


def test_the_page_shows_what_the_key_used(viewer: User, viewer_client: Client) -> None:
    key, _ = services.create_api_key(viewer, "notebook", terms=KeyTerms(tokens_per_minute=7700))
    ApiKey.objects.update(prompt_tokens=1234, output_tokens=56, refusals=7)
    text = viewer_client.get(page_of(key)).content.decode()
    for value in ("7700", "1234", "56", "7"):
        assert f'<data value="{value}"' in text


def test_only_its_owner_and_an_admin_see_a_key(viewer: User, operator: User, admin_client: Client) -> None:
    key, _ = services.create_api_key(viewer, "notebook")
    assert client_of(operator).get(page_of(key)).status_code == 404
    assert client_of(operator).post(page_of(key), FORM).status_code == 404
    assert admin_client.get(page_of(key)).status_code == 200


def test_a_revoked_key_cannot_be_changed(viewer: User, viewer_client: Client) -> None:
    key, _ = services.create_api_key(viewer, "notebook")
    services.revoke_api_key(key)
    text = viewer_client.post(page_of(key), FORM).content.decode()
    assert "cannot come back" in text
    key.refresh_from_db()
    assert key.terms == KeyTerms()


def test_an_end_in_the_far_future_is_refused(viewer: User, viewer_client: Client) -> None:
    key, _ = services.create_api_key(viewer, "notebook")
    answer = viewer_client.post(page_of(key), {**FORM, "expires_at": "2999-01-01T00:00"})
    assert "3650 days at most" in answer.content.decode()

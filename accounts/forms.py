"""What people send about themselves, their keys and other people."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.utils import timezone

from accounts.core.asked_number import asked_number
from accounts.core.key_terms import EVERYTHING, NO_LIMIT, KeyTerms, Scope
from accounts.models import ApiKey, User

LONGEST_KEY_LIFE_DAYS = 3650
MOST_TOKENS_PER_MINUTE = 10**9


class RowsField(forms.ModelMultipleChoiceField):
    """Rows by their ids; what can be no id is no valid choice, and the database is not asked for it."""

    def clean(self, value: Any) -> Any:
        for text in value or ():
            if not asked_number(str(text)):
                message = self.error_messages["invalid_choice"]
                raise forms.ValidationError(message, code="invalid_choice", params={"value": text})
        return super().clean(value)


class KeyTermsForm(forms.Form):
    """Name and terms of an API key."""

    name = forms.CharField(
        max_length=80, help_text="Who or what uses it, so that you can tell later which key to revoke."
    )
    scopes = forms.MultipleChoiceField(
        label="It may",
        choices=ApiKey.Scopes.choices,
        widget=forms.CheckboxSelectMultiple,
        initial=[scope for scope in EVERYTHING if scope != Scope.METRICS],
        error_messages={"required": "Tick at least one: a key that may do nothing is of no use."},
    )
    model_names = forms.CharField(
        label="Only these models",
        required=False,
        max_length=2000,
        widget=forms.Textarea(attrs={"rows": 2}),
        help_text="One name a line, as the endpoint lists them. Empty: every model.",
    )
    max_concurrent = forms.IntegerField(
        label="Requests at once",
        required=False,
        min_value=0,
        max_value=1000,
        help_text="Those that wait count, too. Empty or 0: no limit.",
    )
    tokens_per_minute = forms.IntegerField(
        label="Tokens per minute",
        required=False,
        min_value=0,
        max_value=MOST_TOKENS_PER_MINUTE,
        help_text="Of prompts and answers together. Empty or 0: no limit.",
    )

    def clean_model_names(self) -> tuple[str, ...]:
        lines = [line.strip() for line in self.cleaned_data["model_names"].splitlines()]
        return tuple(dict.fromkeys(line for line in lines if line))

    def terms(self) -> KeyTerms:
        data = self.cleaned_data
        return KeyTerms(
            scopes=tuple(data["scopes"]),
            model_names=data["model_names"],
            max_concurrent=data["max_concurrent"] or NO_LIMIT,
            tokens_per_minute=data["tokens_per_minute"] or NO_LIMIT,
        )


class ApiKeyForm(KeyTermsForm):
    """A key to be made."""

    days = forms.IntegerField(
        label="Ends after (days)",
        required=False,
        min_value=1,
        max_value=LONGEST_KEY_LIFE_DAYS,
        initial=90,
        help_text="Empty: it works until somebody revokes it.",
    )
    field_order = ("name", "days")


class KeyForm(KeyTermsForm):
    """A key that exists."""

    expires_at = forms.DateTimeField(
        label="Ends at (UTC)",
        required=False,
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M"),
        input_formats=["%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M"],
        help_text="Empty: it works until somebody revokes it.",
    )
    field_order = ("name", "expires_at")

    def clean_expires_at(self) -> datetime | None:
        at: datetime | None = self.cleaned_data["expires_at"]
        if at is not None and at > timezone.now() + timedelta(days=LONGEST_KEY_LIFE_DAYS):
            raise forms.ValidationError(
                f"A key lives {LONGEST_KEY_LIFE_DAYS} days at most; leave it empty for no end."
            )
        return at


def key_form(key: ApiKey, data: Any = None) -> KeyForm:
    """The form filled with what the key has now."""
    initial = {
        **asdict(key.terms),
        "name": key.name,
        "model_names": "\n".join(key.model_names),
        "expires_at": key.expires_at.replace(second=0, microsecond=0) if key.expires_at else None,
    }
    return KeyForm(data, initial=initial)


class NewUserForm(forms.ModelForm[User]):
    class Meta:
        model = User
        fields = ("username", "role")
        help_texts = {"username": "Letters, digits and @ . + - _ only."}

    def save(self, commit: bool = True) -> User:
        user = super().save(commit=False)
        user.set_unusable_password()
        if commit:
            user.save()
        return user


class UserForm(forms.ModelForm[User]):
    """An admin cannot take the last way in: somebody has to stay an active admin."""

    class Meta:
        model = User
        fields = ("role", "is_active")
        labels = {"is_active": "May sign in"}
        help_texts = {"is_active": "Off: sessions, links and API keys of this person stop working at once."}

    def clean(self) -> dict[str, Any]:
        data = super().clean() or self.cleaned_data
        stays_admin = data.get("role") == User.Roles.ADMIN and data.get("is_active")
        others = User.objects.filter(role=User.Roles.ADMIN, is_active=True).exclude(pk=self.instance.pk)
        if not stays_admin and not others.exists():
            raise forms.ValidationError("This is the only active admin. Make somebody else an admin first.")
        return data

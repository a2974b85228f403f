"""What people send about themselves, their keys and other people."""

from __future__ import annotations

from typing import Any

from django import forms

from accounts.core.asked_number import asked_number
from accounts.models import User

LONGEST_KEY_LIFE_DAYS = 3650


class RowsField(forms.ModelMultipleChoiceField):
    """Rows by their ids; what can be no id is no valid choice, and the database is not asked for it."""

    def clean(self, value: Any) -> Any:
        for text in value or ():
            if not asked_number(str(text)):
                message = self.error_messages["invalid_choice"]
                raise forms.ValidationError(message, code="invalid_choice", params={"value": text})
        return super().clean(value)


class ApiKeyForm(forms.Form):
    name = forms.CharField(
        max_length=80, help_text="Who or what uses it, so that you can tell later which key to revoke."
    )
    days = forms.IntegerField(
        label="Ends after (days)",
        required=False,
        min_value=1,
        max_value=LONGEST_KEY_LIFE_DAYS,
        initial=90,
        help_text="Empty: it works until somebody revokes it.",
    )
    max_concurrent = forms.IntegerField(
        label="Requests at once",
        required=False,
        min_value=0,
        max_value=1000,
        help_text="Empty or 0: no limit.",
    )

    def clean_max_concurrent(self) -> int:
        return self.cleaned_data["max_concurrent"] or 0


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

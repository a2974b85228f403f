"""What an admin says about alerts, about how long things are kept, and about backups."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from django import forms
from django.core.exceptions import ValidationError
from django.core.validators import validate_email

from accounts.seal import LEAST_CHARACTERS
from serving.models import Retention
from upkeep.models import AlertRules, BackupSchedule

GB = 10**9
LONGEST_DAYS = 3650


class AlertRulesForm(forms.ModelForm[AlertRules]):
    """Empty numbers switch their condition off."""

    disk_free_gb = forms.FloatField(
        label="Less free disk than (GB)",
        required=False,
        min_value=0.1,
        max_value=100_000,
        help_text="Of the disk that the data folder lies on. Empty: not watched.",
    )

    class Meta:
        model = AlertRules
        fields = (
            "watches_replicas",
            "watches_devices",
            "queue_longer_than",
            "queue_seconds",
            "wait_p95_seconds",
            "webhook_url",
            "email_to",
        )
        labels = {
            "watches_replicas": "A replica is down",
            "watches_devices": "A device is lost, or its host key has changed",
            "queue_longer_than": "More requests waiting than",
            "queue_seconds": "… for longer than (s)",
            "wait_p95_seconds": "p95 of the time in the queue above (s)",
            "webhook_url": "Webhook",
            "email_to": "E-mail to",
        }
        help_texts = {
            "watches_replicas": "At its first end, however fast it comes back; over once it has run for 10 min. "
            "Also when a failed roll-out leaves nothing that serves.",
            "queue_longer_than": "Empty: not watched.",
            "queue_seconds": "",
            "wait_p95_seconds": "Over the last 5 min, from 20 requests on. Empty: not watched.",
            "webhook_url": "Each alert is sent there as signed JSON, when it opens and when it is over.",
            "email_to": "Addresses with commas between.",
        }

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for name in ("queue_longer_than", "wait_p95_seconds"):
            self.fields[name].required = False
        free = self.instance.disk_free_bytes
        self.initial.setdefault("disk_free_gb", None if free is None else free / GB)

    def clean_webhook_url(self) -> str:
        url: str = self.cleaned_data["webhook_url"].strip()
        try:
            parts = urlsplit(url)
            is_fine = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1) > 0
        except ValueError:
            is_fine = False
        if url and (not is_fine or not url.isascii() or not url.isprintable() or " " in url):
            raise ValidationError("Give an address that begins with http:// or https:// and names a host.")
        return url

    def clean_email_to(self) -> str:
        text: str = self.cleaned_data["email_to"]
        addresses = [address.strip() for address in text.split(",") if address.strip()]
        for address in addresses:
            validate_email(address)
        return ", ".join(addresses)

    def clean_queue_seconds(self) -> int:
        seconds: int = self.cleaned_data["queue_seconds"]
        if not 1 <= seconds <= 3600:
            raise ValidationError("Give a number of seconds from 1 to 3600.")
        return seconds

    def save(self, commit: bool = True) -> AlertRules:
        free = self.cleaned_data["disk_free_gb"]
        self.instance.disk_free_bytes = None if free is None else round(free * GB)
        self.instance.pk = self.instance.pk or 1
        return super().save(commit)


class RetentionForm(forms.ModelForm[Retention]):
    class Meta:
        model = Retention
        fields = ("request_days", "traffic_days", "job_days", "keeps_prompts", "prompt_days")
        labels = {
            "request_days": "Timelines of requests (days)",
            "traffic_days": "Figures behind the charts (days)",
            "job_days": "Jobs and their logs (days)",
            "keeps_prompts": "Keep what was asked",
            "prompt_days": "What was asked (days)",
        }
        help_texts = {
            "request_days": "Times, tokens and path of each request, without its text.",
            "traffic_days": "The charts show up to 7 days.",
            "job_days": "Jobs of plans stay as long as their plans; their logs go.",
            "keeps_prompts": "Off: no text of a request is stored anywhere. On: admins can read it in the request "
            "inspector, each look is in the audit log, and switching it off deletes all of it at once.",
            "prompt_days": "",
        }

    def clean(self) -> dict[str, Any]:
        data = super().clean() or self.cleaned_data
        for name in ("request_days", "traffic_days", "job_days", "prompt_days"):
            if name in data and not 1 <= data[name] <= LONGEST_DAYS:
                self.add_error(name, f"Give a number of days from 1 to {LONGEST_DAYS}.")
        return data


class ScheduleForm(forms.ModelForm[BackupSchedule]):
    class Meta:
        model = BackupSchedule
        fields = ("every_hours", "kept", "with_history")
        labels = {
            "every_hours": "Every (hours)",
            "kept": "Scheduled backups kept",
            "with_history": "With single requests and traffic figures",
        }
        help_texts = {"every_hours": "0: none by itself.", "kept": "", "with_history": ""}

    def clean(self) -> dict[str, Any]:
        data = super().clean() or self.cleaned_data
        if "every_hours" in data and data["every_hours"] > 24 * 31:
            self.add_error("every_hours", "Give a number of hours up to 744, a month.")
        if "kept" in data and not 1 <= data["kept"] <= 365:
            self.add_error("kept", "Give a number from 1 to 365.")
        return data


class SealForm(forms.Form):
    passphrase = forms.CharField(
        min_length=LEAST_CHARACTERS,
        max_length=500,
        strip=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
        help_text="It is asked for when the backup is restored, and it is stored nowhere.",
        error_messages={"min_length": f"The passphrase needs {LEAST_CHARACTERS} characters or more."},
    )

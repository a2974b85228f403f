"""What is changed on a registered device: its settings, its memory, its host key."""

from __future__ import annotations

from datetime import date
from typing import Any

from django import forms
from django.utils import timezone

from inventory.core.availability import DAYS
from inventory.core.quantities import bytes_text
from inventory.forms.place import NAME, USER, PlaceForm, host_of
from inventory.models import Device, SshIdentity

GB = 10**9
MAIN_POOL_LABELS = {"cpu": "RAM (GB)", "unified": "Unified memory (GB)", "gpu": "Memory of the GPU (GB)"}


class SettingsForm(PlaceForm):
    """What can be changed on a registered device."""

    name = forms.CharField(max_length=80, validators=[NAME])
    chosen_gpu = forms.ChoiceField(
        required=False,
        label="GPU for plans",
        help_text="One of several. Memory and profiles are those of this one, so time the models again after a change.",
    )
    available_days = forms.MultipleChoiceField(
        required=False,
        choices=[(str(number), day) for number, day in enumerate(DAYS)],
        widget=forms.CheckboxSelectMultiple,
        label="Days on which plans may use it",
        help_text="None ticked: every day.",
    )
    available_from = forms.TimeField(
        required=False,
        label="From (UTC)",
        help_text="Empty: the whole day.",
        widget=forms.TimeInput(attrs={"type": "time"}, format="%H:%M"),
    )
    available_to = forms.TimeField(
        required=False,
        label="To (UTC)",
        help_text="Earlier than from: on the next day.",
        widget=forms.TimeInput(attrs={"type": "time"}, format="%H:%M"),
    )
    available_until = forms.DateField(
        required=False,
        label="Last day",
        help_text="For a machine that is lent.",
        widget=forms.DateInput(attrs={"type": "date"}, format="%Y-%m-%d"),
    )
    field_order = ("name", "address", "chosen_gpu", "llama_folder", "model_roots")

    def __init__(self, data: Any = None, *, device: Device) -> None:
        self.device = device
        initial = {
            "name": device.name,
            "address": device.address,
            "llama_folder": device.llama_folder,
            "model_roots": "\n".join(device.model_roots),
            "chosen_gpu": device.chosen_gpu,
            "available_days": list(device.available_days),
            "available_from": device.available_from,
            "available_to": device.available_to,
            "available_until": device.available_until,
        }
        super().__init__(data, initial=initial)
        gpus = device.hardware.get("gpus", [])
        if len(gpus) < 2:
            del self.fields["chosen_gpu"]
            return
        field = self.fields["chosen_gpu"]
        assert isinstance(field, forms.ChoiceField)
        listed = [(gpu["name"], f"{gpu['name']}: {gpu['description']}") for gpu in gpus]
        field.choices = [("", f"The first ({gpus[0]['name']})"), *listed]

    def clean_name(self) -> str:
        name = str(self.cleaned_data["name"]).strip()
        if Device.objects.filter(name=name).exclude(pk=self.device.pk).exists():
            raise forms.ValidationError(f"There is already a device called {name!r}. Choose another name.")
        return name

    def values(self) -> dict[str, Any]:
        data = self.cleaned_data
        days = "".join(sorted(data["available_days"]))
        return data | {"address": data["address"] or None, "available_days": days}

    def clean_available_until(self) -> date | None:
        last: date | None = self.cleaned_data["available_until"]
        today = timezone.now().date()
        if last is not None and last < today and last != self.device.available_until:
            raise forms.ValidationError(
                f"{last} is over: no plan would use it. Enter a day from {today} on (UTC), or set it to maintenance."
            )
        return last

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        start, end = cleaned.get("available_from"), cleaned.get("available_to")
        if (start is None) != (end is None):
            self.add_error("available_to", "Enter both hours, or none.")
        elif start is not None and start == end:
            self.add_error("available_to", "These hours are empty: leave both out for the whole day.")
        return cleaned


class MemoryForm(forms.Form):
    """Memory that plans may use, in the words and the unit in which the device's page shows it."""

    main_gb = forms.FloatField(min_value=0, max_value=100_000)
    ram_gb = forms.FloatField(
        min_value=0, max_value=100_000, label="RAM beside the GPU (GB)", help_text="0: only the GPU is used."
    )
    reason = forms.CharField(
        max_length=300,
        label="Reason",
        help_text="Why the probed numbers do not hold, for those who come after you.",
    )

    def __init__(self, data: Any = None, *, device: Device) -> None:
        main, ram = device.gpu_usable_bytes or 0, device.ram_usable_bytes or 0
        super().__init__(data, initial={"main_gb": round(main / GB, 3), "ram_gb": round(ram / GB, 3)})
        self.fields["main_gb"].label = MAIN_POOL_LABELS[device.main_pool]
        self.device = device
        if device.main_pool != "gpu":
            del self.fields["ram_gb"]

    def clean_main_gb(self) -> float:
        size = float(self.cleaned_data["main_gb"])
        if round(size * GB) < 1:
            raise forms.ValidationError(
                "Enter more than 0. To keep the device out of plans, set it to maintenance."
            )
        return self._within(size, self.device.main_total_bytes)

    def clean_ram_gb(self) -> float:
        return self._within(float(self.cleaned_data["ram_gb"]), self.device.ram_total_bytes)

    def _within(self, size_gb: float, total_bytes: int) -> float:
        """A machine cannot hold more than it has; where the probe does not know that, anything is believed."""
        if total_bytes and round(size_gb, 3) > round(total_bytes / GB, 3):
            raise forms.ValidationError(
                f"{self.device} has {bytes_text(total_bytes)} of this memory in all. Enter at most that; if memory was "
                "added, probe it again first."
            )
        return size_gb

    def sizes(self) -> tuple[int, int]:
        data = self.cleaned_data
        return round(data["main_gb"] * GB), round(data.get("ram_gb", 0) * GB)


class HostKeyForm(forms.Form):
    line = forms.CharField(widget=forms.HiddenInput)
    reason = forms.CharField(
        max_length=300, label="Why did the key change?", help_text="Kept in the audit log."
    )


class WayForm(forms.Form):
    """Where and as whom a device is reached over SSH."""

    host = forms.CharField(
        max_length=255,
        help_text="After a move to another address. It has to show the same host key.",
        widget=forms.TextInput(attrs={"autocapitalize": "off", "spellcheck": "false"}),
    )
    port = forms.IntegerField(min_value=1, max_value=65535)
    username = forms.CharField(
        max_length=64,
        validators=[USER],
        label="User",
        help_text="Our key has to be in the authorized_keys of this user.",
        widget=forms.TextInput(attrs={"autocapitalize": "off", "spellcheck": "false"}),
    )
    identity = forms.ModelChoiceField(
        SshIdentity.objects.order_by("name"), label="SSH identity", empty_label=None
    )
    reached_through = forms.ModelChoiceField(
        Device.objects.none(), required=False, empty_label="Directly", label="Reached through"
    )

    def __init__(self, data: Any = None, *, device: Device) -> None:
        super().__init__(data, initial={name: getattr(device, name) for name in self.base_fields})
        others = Device.objects.filter(connection=Device.Connections.SSH).exclude(pk=device.pk)
        field = self.fields["reached_through"]
        assert isinstance(field, forms.ModelChoiceField)
        field.queryset = others.exclude(reached_through=device).order_by("name")

    def clean_host(self) -> str:
        return host_of(self.cleaned_data["host"])

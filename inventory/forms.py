"""What an admin types about devices, checked before anything is sent anywhere."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any

from django import forms
from django.core.validators import RegexValidator

from accounts.forms import RowsField
from inventory.core.availability import DAYS
from inventory.models import Device, LanguageModel, SshIdentity
from inventory.remote import import_identity
from inventory.services import NewDevice, already_text, known_as

GB = 10**9
MAIN_POOL_LABELS = {"cpu": "RAM (GB)", "unified": "Unified memory (GB)", "gpu": "Memory of the GPU (GB)"}
NAME = RegexValidator(
    r"^[^\W_][\w .()+-]*$", "Use letters, digits, spaces and . ( ) + -; begin with a letter or digit."
)
HOST = RegexValidator(
    r"^[A-Za-z0-9\[][A-Za-z0-9._:%\[\]-]*$", "Enter a host name or an IP address, such as 192.168.1.20."
)
USER = RegexValidator(
    r"^[A-Za-z0-9_][A-Za-z0-9._@+-]*$", "A user name has letters, digits and . _ @ + - only."
)
DEVICE_LINE = re.compile(
    r"^(?:(?P<name>.*\S)[\s,]+)?(?P<user>[^\s@,]+)@(?:\[(?P<bracketed>[^\]]+)\]|(?P<host>[^\s:@,]+))(?::(?P<port>\d{1,5}))?$"
)
MOST_AT_ONCE = 50
PATH_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def absolute_folder(text: str) -> str:
    """An absolute folder as typed; ValidationError names what is wrong with it."""
    path = PurePosixPath(text)
    if PATH_CONTROL.search(text):
        raise forms.ValidationError("A folder's name cannot hold line breaks or control characters.")
    if text and (not path.is_absolute() or ".." in path.parts or len(path.parts) < 2):
        raise forms.ValidationError(f"{text!r} is not an absolute folder such as /opt/llama.cpp/bin.")
    return text


class PlaceForm(forms.Form):
    """Where things lie on a device; empty fields mean the usual places."""

    llama_folder = forms.CharField(
        required=False,
        max_length=500,
        label="Folder of llama.cpp",
        help_text="Only when llama-server is not on PATH there.",
        widget=forms.TextInput(attrs={"placeholder": "/opt/llama.cpp/build/bin", "spellcheck": "false"}),
    )
    model_roots = forms.CharField(
        required=False,
        label="Folders with models",
        help_text="One a line. Empty: ~/models, llama.cpp's, Hugging Face's and LM Studio's folders, /models.",
        widget=forms.Textarea(attrs={"rows": 3, "spellcheck": "false"}),
    )
    address = forms.GenericIPAddressField(
        required=False,
        protocol="IPv4",
        label="Address for other devices",
        help_text="IPv4, where the other machines reach it. Empty: found by itself.",
    )

    def clean_llama_folder(self) -> str:
        return absolute_folder(self.cleaned_data["llama_folder"].strip())

    def clean_model_roots(self) -> list[str]:
        lines = [line.strip() for line in self.cleaned_data["model_roots"].splitlines()]
        return [absolute_folder(line) for line in lines if line]


class AddDeviceForm(PlaceForm):
    connection = forms.ChoiceField(
        choices=Device.Connections,
        initial=Device.Connections.SSH,
        widget=forms.RadioSelect,
        label="Connection",
    )
    name = forms.CharField(max_length=80, validators=[NAME], help_text="How plans and pages call it.")
    host = forms.CharField(
        max_length=255,
        validators=[HOST],
        label="Host",
        help_text="Name or address, as you would give it to ssh.",
        widget=forms.TextInput(attrs={"autocapitalize": "off", "spellcheck": "false"}),
    )
    port = forms.IntegerField(min_value=1, max_value=65535, initial=22)
    username = forms.CharField(
        max_length=64,
        validators=[USER],
        label="User",
        widget=forms.TextInput(attrs={"autocapitalize": "off", "autocomplete": "off", "spellcheck": "false"}),
    )
    identity = forms.ModelChoiceField(
        SshIdentity.objects.order_by("name"),
        required=False,
        empty_label="This site's own key",
        label="SSH identity",
    )
    reached_through = forms.ModelChoiceField(
        Device.objects.filter(connection=Device.Connections.SSH),
        required=False,
        empty_label="Directly",
        label="Reached through",
        help_text="A device that stands between, as with ssh -J.",
    )
    password = forms.CharField(
        required=False,
        label="Password",
        help_text="Used once to install the key, then forgotten. Leave it empty when the key is already there.",
        widget=forms.PasswordInput(attrs={"autocomplete": "off"}),
    )

    use_required_attribute = False  # what is needed depends on the connection

    def __init__(self, data: Any = None, *, initial: dict[str, Any] | None = None) -> None:
        super().__init__(data, initial=initial)
        if data is not None and data.get("connection") == Device.Connections.LOCAL:
            for name in ("host", "port", "username"):
                self.fields[name].required = False

    def clean_name(self) -> str:
        name = str(self.cleaned_data["name"]).strip()
        if Device.objects.filter(name=name).exists():
            raise forms.ValidationError(f"There is already a device called {name!r}. Choose another name.")
        return name

    def clean_host(self) -> str:
        return str(self.cleaned_data["host"]).strip("[]")

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if cleaned.get("connection") == Device.Connections.LOCAL:
            known = Device.objects.filter(connection=Device.Connections.LOCAL).first()
            if known is not None:
                self.add_error("connection", f"This machine is already {known.name}.")
        elif not self.errors:
            new = self.new_device()
            known = known_as(new)
            if known is not None:
                self.add_error("host", already_text(new, known))
        return cleaned

    def new_device(self) -> NewDevice:
        data = self.cleaned_data
        return NewDevice(
            name=data["name"],
            host=data["host"],
            port=data["port"],
            username=data["username"],
            address=data["address"] or "",
            llama_folder=data["llama_folder"],
            model_roots=tuple(data["model_roots"]),
            reached_through=data["reached_through"],
        )


class SeveralForm(forms.Form):
    """Many devices, one a line: `name user@host:port`, the name and the port may be left out."""

    lines = forms.CharField(
        label="Devices",
        help_text="One a line: a name, then user@host or user@host:port. Without a name the host is the name.",
        widget=forms.Textarea(
            attrs={
                "rows": 6,
                "spellcheck": "false",
                "placeholder": "box-1 ada@192.168.1.20\nbox-2 ada@192.168.1.21:2222",
            }
        ),
    )
    password = forms.CharField(
        required=False,
        label="Password",
        help_text="The same on all of them, used once to install the key. Empty: the key is already there.",
        widget=forms.PasswordInput(attrs={"autocomplete": "off"}),
    )

    def clean_lines(self) -> list[NewDevice]:
        typed = [line.strip() for line in self.cleaned_data["lines"].splitlines() if line.strip()]
        found, problems = [], []
        for line in typed[:MOST_AT_ONCE]:
            try:
                found.append(device_line(line))
            except forms.ValidationError as error:
                problems.append(f"{line}: {' '.join(error.messages)}")
        names = [new.name for new in found]
        taken = set(Device.objects.filter(name__in=names).values_list("name", flat=True))
        problems += [f"{name}: there is already a device of this name" for name in names if name in taken]
        problems += [
            f"{name} stands twice" for name in sorted({name for name in names if names.count(name) > 1})
        ]
        problems += [already_text(new, known) for new in found if (known := known_as(new)) is not None]
        ways = [f"{new.username}@{new.host.lower()}:{new.port}" for new in found]
        problems += [f"{way} stands twice" for way in sorted({way for way in ways if ways.count(way) > 1})]
        if len(typed) > MOST_AT_ONCE:
            problems.append(f"{len(typed)} lines; {MOST_AT_ONCE} at a time are possible")
        if problems:
            raise forms.ValidationError(problems)
        return found


def device_line(line: str) -> NewDevice:
    """`name user@host:port` as a device; ValidationError says what is wrong with it."""
    match = DEVICE_LINE.match(line)
    if match is None:
        raise forms.ValidationError("not of the form name user@host:port")
    host = (match["host"] or match["bracketed"]).strip()
    name, port = (match["name"] or host).strip(" ,"), int(match["port"] or 22)
    for check, value in ((NAME, name), (HOST, host), (USER, match["user"])):
        check(value)
    if not 1 <= port <= 65535:
        raise forms.ValidationError(f"port {port} does not exist")
    return NewDevice(name, host, port, match["user"])


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
        if device.main_pool != "gpu":
            del self.fields["ram_gb"]

    def clean_main_gb(self) -> float:
        size = float(self.cleaned_data["main_gb"])
        if round(size * GB) < 1:
            raise forms.ValidationError(
                "Enter more than 0. To keep the device out of plans, set it to maintenance."
            )
        return size

    def sizes(self) -> tuple[int, int]:
        data = self.cleaned_data
        return round(data["main_gb"] * GB), round(data.get("ram_gb", 0) * GB)


class HostKeyForm(forms.Form):
    line = forms.CharField(widget=forms.HiddenInput)
    reason = forms.CharField(
        max_length=300, label="Why did the key change?", help_text="Kept in the audit log."
    )


class ProfileForm(forms.Form):
    model = forms.ModelChoiceField(LanguageModel.objects.all(), label="Model", empty_label=None)
    devices = RowsField(Device.objects.none(), widget=forms.CheckboxSelectMultiple, label="Devices")
    thoroughness = forms.ChoiceField(
        choices=[
            ("quick", "Quick: some seconds a device, two depths, prompts up to 512 tokens"),
            ("thorough", "Thorough: about two minutes a device, three depths, prompts up to 2048 tokens"),
        ],
        initial="quick",
        widget=forms.RadioSelect,
        label="How thorough",
    )
    anyway = forms.BooleanField(
        required=False,
        label="Also on devices that serve now",
        help_text="Answers get slower meanwhile, and the timings come out too slow.",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        devices = self.fields["devices"]
        assert isinstance(devices, forms.ModelMultipleChoiceField)
        devices.queryset = Device.objects.usable()
        if not Device.objects.in_use().exists():
            del self.fields["anyway"]


class IdentityForm(forms.Form):
    """A key pair that the admin brings."""

    name = forms.CharField(max_length=80, validators=[NAME])
    private_key = forms.CharField(
        label="Private key",
        help_text="OpenSSH or PEM text. It is stored encrypted and never shown again.",
        widget=forms.Textarea(attrs={"rows": 5, "spellcheck": "false", "autocomplete": "off"}),
    )
    passphrase = forms.CharField(
        required=False, help_text="Only if the key has one; it is not kept.", widget=forms.PasswordInput
    )

    def clean_name(self) -> str:
        name = str(self.cleaned_data["name"]).strip()
        if SshIdentity.objects.filter(name=name).exists():
            raise forms.ValidationError(f"There is already an identity called {name!r}. Choose another name.")
        return name

    def save(self) -> SshIdentity | None:
        """The saved identity; None, with an error on the form, when the key cannot be read."""
        data = self.cleaned_data
        try:
            return import_identity(data["name"], data["private_key"].strip() + "\n", data["passphrase"])
        except ValueError as error:
            self.add_error("private_key", f"This key was not saved: {error}.")
            return None

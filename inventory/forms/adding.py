"""Devices to be added, one or many."""

from __future__ import annotations

import re
from typing import Any

from django import forms

from inventory.forms.place import NAME, USER, PlaceForm, host_of
from inventory.models import Device, SshIdentity
from inventory.services import NewDevice, already_text, known_as, place_text

DEVICE_LINE = re.compile(
    r"^(?:(?P<name>.*\S)[\s,]+)?(?P<user>[^\s@,]+)@(?P<host>\[[^\]]+\]|[^\s:@,]+|[^\s@,\[\]]*:[^\s@,\[\]]*:[^\s@,\[\]]*)(?::(?P<port>\d{1,5}))?$"
)
MOST_AT_ONCE = 50
OVER_SSH = ("host", "port", "username", "identity", "reached_through", "password")


class PasswordOnce(forms.Form):
    """A form that is shown again shows no password: it says that it has to be typed again."""

    def add_error(self, field: str | None, error: Any) -> None:
        super().add_error(field, error)
        if self.data.get("password") and "password" not in self.errors:
            super().add_error("password", "Type it again: passwords are not kept.")


class AddDeviceForm(PasswordOnce, PlaceForm):
    connection = forms.ChoiceField(
        choices=Device.Connections,
        initial=Device.Connections.SSH,
        widget=forms.RadioSelect,
        label="Connection",
    )
    name = forms.CharField(max_length=80, validators=[NAME], help_text="How plans and pages call it.")
    host = forms.CharField(
        max_length=255,
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

    def clean_name(self) -> str:
        name = str(self.cleaned_data["name"]).strip()
        if Device.objects.filter(name=name).exists():
            raise forms.ValidationError(f"There is already a device called {name!r}. Choose another name.")
        return name

    def clean_host(self) -> str:
        return host_of(self.cleaned_data["host"])

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if cleaned.get("connection") == Device.Connections.LOCAL:
            for name in OVER_SSH:  # hidden now, whatever stands in them
                self.errors.pop(name, None)
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


class SeveralForm(PasswordOnce):
    """Many devices, one a line: `name user@host:port`, the name and the port may be left out."""

    lines = forms.CharField(
        label="Devices",
        help_text="One a line: a name, then user@host or user@host:port. No name: the host is it. # is a comment.",
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
        lines = [line.strip() for line in self.cleaned_data["lines"].splitlines()]
        typed = [line for line in lines if line and not line.startswith("#")]
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
        ways = [f"{new.username}@{place_text(new.host.lower(), new.port)}" for new in found]
        problems += [f"{way} stands twice" for way in sorted({way for way in ways if ways.count(way) > 1})]
        if len(typed) > MOST_AT_ONCE:
            problems.append(f"{len(typed)} lines; {MOST_AT_ONCE} at a time are possible")
        if not typed:
            problems.append("Every line is a comment: enter a device, such as box-1 ada@192.168.1.20")
        if problems:
            raise forms.ValidationError(problems)
        return found


def device_line(line: str) -> NewDevice:
    """`name user@host:port` as a device; ValidationError says what is wrong with it."""
    match = DEVICE_LINE.match(line)
    if match is None:
        raise forms.ValidationError("not of the form name user@host:port")
    host = host_of(match["host"])
    name, port = (match["name"] or _name_of(host)).strip(" ,"), int(match["port"] or 22)
    for check, value in ((NAME, name), (USER, match["user"])):
        check(value)
    if not 1 <= port <= 65535:
        raise forms.ValidationError(f"port {port} does not exist")
    return NewDevice(name, host, port, match["user"])


def _name_of(host: str) -> str:
    """A host as a name; the colons of an IPv6 address cannot stand in one."""
    return f"ip-{re.sub('[:%]+', '-', host).strip('-')}" if ":" in host else host

"""Names, hosts and users as they may be typed, and where things lie on a device."""

from __future__ import annotations

import ipaddress
import re
from pathlib import PurePosixPath

from django import forms
from django.core.validators import RegexValidator

NAME = RegexValidator(
    r"^[^\W_][\w .()+-]*$", "Use letters, digits, spaces and . ( ) + -; begin with a letter or digit."
)
HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
BRACKETED = re.compile(r"\[(.*)\]")
USER = RegexValidator(
    r"^[A-Za-z0-9_][A-Za-z0-9._@+-]*$", "A user name has letters, digits and . _ @ + - only."
)
PATH_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def host_of(text: str) -> str:
    """A host as ssh takes it: a name or an address, IPv6 perhaps in brackets; else ValidationError."""
    user, at, host = text.strip().rpartition("@")
    if at:
        raise forms.ValidationError(f"Enter {host!r} only: the user {user!r} has a field of its own.")
    inside = BRACKETED.fullmatch(host)
    if inside or ":" in host:
        try:
            return str(ipaddress.IPv6Address(inside[1] if inside else host))
        except ValueError:
            raise forms.ValidationError(
                f"{host!r} is no IPv6 address such as fe80::1%eth0. A port has a place of its own."
            ) from None
    if not HOST_NAME.fullmatch(host):
        raise forms.ValidationError(
            "Enter a host name or an IP address, such as 192.168.1.20 or fe80::1%eth0."
        )
    return host


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

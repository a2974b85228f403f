"""SSH key pairs that an admin brings."""

from __future__ import annotations

from django import forms

from inventory.forms.place import NAME
from inventory.models import SshIdentity
from inventory.remote import import_identity


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

"""Which model to time on which devices, and how thoroughly."""

from __future__ import annotations

from typing import Any

from django import forms
from django.utils.html import escape

from accounts.forms import RowsField
from inventory.models import Device, LanguageModel
from inventory.services import left_out_text


class ProfileForm(forms.Form):
    model = forms.ModelChoiceField(LanguageModel.objects.usable(), label="Model", empty_label=None)
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
        self.fields["model"].help_text = escape(left_out_text())
        if not Device.objects.in_use().exists():
            del self.fields["anyway"]

    def clean_model(self) -> LanguageModel:
        model: LanguageModel = self.cleaned_data["model"]
        if model.shape.get("pooling"):
            raise forms.ValidationError(
                "It makes embeddings and no text, so there are no tokens to time: serve it from its page."
            )
        return model

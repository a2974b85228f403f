"""What a person says to plan and deploy, and how the request table is filtered."""

from __future__ import annotations

from typing import Any

from django import forms

from inventory.core.model_shape import ModelShape
from inventory.models import Device, LanguageModel
from planner.forms import PlanForm
from serving.models import Deployment, RequestSample
from serving.services.traffic import RequestFilter

FIRST_CONTEXT_TOKENS = 8192


class LaunchForm(PlanForm):
    """The plan form with the confirm that may be given at once."""

    deploys_unasked = forms.BooleanField(
        required=False,
        label="Deploy without asking again",
        help_text="Otherwise the plan is shown first, and nothing is started before you confirm it.",
    )


def first_choices() -> dict[str, Any]:
    """The newest usable model on every usable device, with a context that the model knows."""
    newest = LanguageModel.objects.usable().order_by("-created_at").first()
    chosen: dict[str, Any] = {"devices": list(Device.objects.usable().values_list("pk", flat=True))}
    if newest is not None:
        trained = ModelShape.from_dict(newest.shape).context_train or FIRST_CONTEXT_TOKENS
        chosen |= {"model": newest.pk, "context_tokens": min(FIRST_CONTEXT_TOKENS, trained)}
        if trained < FIRST_CONTEXT_TOKENS:
            chosen |= {"input_tokens": trained // 4, "output_tokens": trained // 4}
    return chosen


class EmbeddingsForm(forms.Form):
    """Where a model that makes embeddings is to run."""

    device = forms.ModelChoiceField(
        Device.objects.none(), help_text="It needs a copy of the model; copy it there on the model's page."
    )
    slots = forms.IntegerField(label="Texts at once", min_value=1, max_value=64, initial=4)
    context_tokens = forms.IntegerField(
        label="Longest text (tokens)",
        min_value=16,
        help_text="As long as the model was trained for, or shorter.",
    )

    def __init__(self, model: LanguageModel, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        holders = Device.objects.usable().filter(model_files__model=model).distinct()
        self.fields["device"].queryset = holders  # type: ignore[attr-defined]  # a field of that kind
        self.fields["context_tokens"].initial = ModelShape.from_dict(model.shape).context_train


class RequestFilterForm(forms.Form):
    outcome = forms.ChoiceField(
        required=False, choices=[("", "Any outcome"), *RequestSample.Outcomes.choices]
    )
    handover = forms.ChoiceField(
        required=False,
        label="Hand-over",
        choices=[("", "Any hand-over"), *RequestSample.Handovers.choices],
    )
    deployment = forms.ModelChoiceField(
        Deployment.objects.defer("plan", "cluster"),
        required=False,
        empty_label="Any deployment",
    )
    words = forms.CharField(
        required=False,
        label="Request id or error",
        widget=forms.TextInput(attrs={"placeholder": "id or error"}),
    )

    def wanted(self) -> RequestFilter:
        """The filter; a value that cannot be read filters nothing."""
        self.is_valid()
        data = self.cleaned_data
        deployment = data.get("deployment")
        return RequestFilter(
            outcome=data.get("outcome", ""),
            handover=data.get("handover", ""),
            deployment=deployment.pk if deployment else None,
            words=data.get("words", ""),
        )

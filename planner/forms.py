"""What a person asks the planner for, read into the words of the cluster file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django import forms
from django.core.files.uploadedfile import UploadedFile
from django.utils.html import escape

from accounts.forms import RowsField
from inventory.core.quantities import bytes_text
from inventory.models import Device, LanguageModel
from inventory.services import left_out_text
from planner.core.document import read_json
from planner.core.errors import NotJson
from planner.models import LONGEST_TITLE, PlanRun
from planner.services import Alternatives, Changes

LARGEST_FILE_BYTES = 4 * 1024 * 1024
RUNTIMES = [
    ("serial", "Serial: one batch walks the stages in turn (llama.cpp today)"),
    ("overlapped", "Overlapped: every stage works on another batch (the paper)"),
]


def limits(least: float, most: float, unit: str = "") -> dict[str, Any]:
    """Bounds of a number field, told in our words; what a browser cannot read as a number arrives empty."""
    low, high = (f"{value:,} {unit}".strip() for value in (least, most))
    what = "whole number" if isinstance(least, int) else "number"
    entered = f"Enter a {what} from {low} to {high}."
    return {
        "min_value": least,
        "max_value": most,
        "error_messages": {
            "required": entered,
            "invalid": entered,
            "min_value": f"Use at least {low}.",
            "max_value": f"Use at most {high}.",
        },
    }


@dataclass(frozen=True)
class Preset:
    """Mean token counts of a data set, from the paper's Table 1."""

    key: str
    name: str
    measured_on: str
    input_tokens: int
    output_tokens: int
    arrival_seconds: float = 1.0
    context_tokens: int = 8192


PRESETS = (
    Preset("ielts-gpt-oss", "IELTS essays", "gpt-oss-20b", 2291, 1385),
    Preset("ielts-qwen3", "IELTS essays", "Qwen3-30B-A3B", 2291, 1957),
    Preset("longreason-gpt-oss", "LongReason questions", "gpt-oss-20b", 576, 588),
    Preset("longreason-qwen3", "LongReason questions", "Qwen3-30B-A3B", 576, 746),
)
WORKLOAD_FIELDS = ("input_tokens", "output_tokens", "arrival_seconds", "requests", "context_tokens")
WHAT_IF_WORKLOAD = ("arrival_seconds", "input_tokens", "output_tokens")
WHAT_IF_POLICY = ("min_tokens_per_second",)
POLICY_FIELDS = ("min_tokens_per_second", "max_slots", "runtime", "allow_mixed", "seed")


class WorkloadForm(forms.Form):
    """Who asks how much, how often, and what they may expect."""

    input_tokens = forms.IntegerField(
        **limits(1, 1_000_000),
        initial=576,
        label="Input tokens",
        help_text="Mean length of a prompt.",
    )
    output_tokens = forms.IntegerField(
        **limits(1, 1_000_000),
        initial=588,
        label="Output tokens",
        help_text="Mean length of an answer.",
    )
    arrival_seconds = forms.FloatField(
        **limits(0.001, 86_400, "s"),
        initial=1.0,
        label="Seconds between requests",
        help_text="Mean interval at which requests arrive.",
    )
    requests = forms.IntegerField(
        **limits(1, 10_000),
        initial=100,
        label="Requests in a burst",
        help_text="The longest wait is predicted for this many.",
    )
    context_tokens = forms.IntegerField(
        **limits(64, 10_000_000),
        initial=8192,
        label="Context of a slot",
        help_text="Tokens that one request may use, prompt and answer together.",
    )
    min_tokens_per_second = forms.FloatField(
        **limits(0.01, 10_000, "tokens/s"),
        initial=7.0,
        label="Floor (tokens/s)",
        help_text="Tokens per second that the slowest request must still get.",
    )

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if {"input_tokens", "output_tokens", "context_tokens"} <= cleaned.keys():
            needed = cleaned["input_tokens"] + cleaned["output_tokens"]
            if cleaned["context_tokens"] < needed:
                text = f"This does not hold a prompt and an answer: enter {needed} or more."
                self.add_error("context_tokens", text)
        return cleaned

    def workload(self) -> dict[str, Any]:
        return {name: self.cleaned_data[name] for name in WORKLOAD_FIELDS}


class DevicesField(RowsField):
    """Devices with their memory, and with what keeps one out of a plan."""

    def label_from_instance(self, obj: Device) -> str:
        if obj.in_maintenance:
            return f"{obj.name} (in maintenance)"
        if obj.closed_reason:
            return f"{obj.name} ({obj.closed_reason})"
        if obj.gpu_usable_bytes is None:
            return f"{obj.name} (not probed)"
        ram = f" + {bytes_text(obj.ram_usable_bytes)} RAM" if obj.ram_usable_bytes else ""
        return f"{obj.name} ({bytes_text(obj.gpu_usable_bytes)}{ram})"


class ChipsField(forms.MultipleChoiceField):
    """Any number of short choices, each with a box to tick."""

    widget = forms.CheckboxSelectMultiple

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(required=False, **kwargs)


class PolicyForm(WorkloadForm):
    """The workload, and how a plan for it is looked for."""

    max_slots = forms.IntegerField(
        **limits(1, 256),
        initial=32,
        label="Most slots in a replica",
        help_text="Requests that one replica may work on at once.",
    )
    runtime = forms.ChoiceField(choices=RUNTIMES, initial="serial", widget=forms.RadioSelect, label="Runtime")
    allow_mixed = forms.BooleanField(
        required=False,
        initial=True,
        label="Allow mixed replicas",
        help_text="Replicas that process prompts and answers both, without a hand-over.",
    )
    method = forms.ChoiceField(choices=PlanRun.Methods.choices, initial=PlanRun.Methods.AUTO, label="Method")
    seed = forms.IntegerField(
        **limits(0, 2**31 - 1),
        initial=0,
        label="Seed",
        help_text="The same seed gives the same plan.",
    )

    def chosen_policy(self) -> dict[str, Any]:
        return {name: self.cleaned_data[name] for name in POLICY_FIELDS}


class PlanForm(PolicyForm):
    model = forms.ModelChoiceField(LanguageModel.objects.none(), label="Model", empty_label=None)
    devices = DevicesField(
        Device.objects.none(),
        label="Devices",
        widget=forms.CheckboxSelectMultiple,
        error_messages={"required": "Choose at least one device."},
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        models, devices = self.fields["model"], self.fields["devices"]
        assert isinstance(models, forms.ModelChoiceField) and isinstance(
            devices, forms.ModelMultipleChoiceField
        )
        models.queryset = LanguageModel.objects.usable()
        models.help_text = escape(left_out_text())  # names come from files, and a help text is shown as HTML
        devices.queryset = Device.objects.all()

    def policy(self) -> dict[str, Any]:
        """llama.cpp moves everything through the master, so the topology is always a star."""
        return {**self.chosen_policy(), "topology": "star", "allow_idle": True}


class ChangeForm(PolicyForm):
    """The frozen inputs of a run whose model or devices are not those of the lab; the rest of them stays."""

    without = ChipsField(label="Leave out")

    def __init__(self, data: Any, run: PlanRun) -> None:
        known = run.cluster["workload"] | run.cluster["policy"]
        super().__init__(data, initial={**known, "method": run.method, "seed": run.seed})
        names = [device["name"] for device in run.cluster["devices"]]
        without = self.fields["without"]
        assert isinstance(without, forms.ChoiceField)
        without.choices = [(name, name) for name in names]
        self.device_count = len(names)

    def clean_without(self) -> list[str]:
        left_out: list[str] = self.cleaned_data["without"]
        if len(left_out) == self.device_count:
            raise forms.ValidationError("Leave at least one device in.")
        return left_out

    def changes(self) -> Changes:
        return Changes(self.workload(), self.chosen_policy(), self.cleaned_data["without"])


class JsonFileField(forms.FileField):
    """A document of ours in a file; `entry` is what a plan's page calls it under Export."""

    def __init__(self, *, entry: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.entry = entry

    def clean(self, data: Any, initial: Any = None) -> Any:
        upload = super().clean(data, initial)
        if not isinstance(upload, UploadedFile):
            return None
        if upload.size is None or upload.size > LARGEST_FILE_BYTES:
            raise forms.ValidationError(
                f"The file is larger than {LARGEST_FILE_BYTES // 2**20} MiB: no cluster is that big."
            )
        try:
            return read_json(upload.read())
        except NotJson as error:
            expected = f"A {str(self.label).lower()} is JSON, a text in UTF-8."
            raise forms.ValidationError(f"{upload.name} {error}. {expected} {self.remedy(error)}") from None

    def remedy(self, error: NotJson) -> str:
        if not error.is_other_kind:
            return "Mend it and choose it again."
        if PlanRun.objects.filter(plan__isnull=False).exists():
            return f"Choose one that the page of a plan gives under Export, “{self.entry}”."
        return "Choose another file, or save yours as UTF-8."


class FileForm(forms.Form):
    """A cluster file to plan for, or a cluster file with the plan that was made for it."""

    cluster = JsonFileField(
        entry="Cluster file (JSON)", label="Cluster file", help_text="Format e2llm-cluster/1."
    )
    plan = JsonFileField(
        entry="Plan (JSON)",
        required=False,
        label="Plan file",
        help_text="Format e2llm-plan/1. Without it a plan is searched for.",
    )
    method = forms.ChoiceField(choices=PlanRun.Methods.choices, initial=PlanRun.Methods.AUTO, label="Method")
    seed = forms.IntegerField(**limits(0, 2**31 - 1), initial=0, label="Seed")


class TitleForm(forms.Form):
    """What a person calls a run, so as to find it among others of the same devices."""

    title = forms.CharField(
        required=False,
        max_length=LONGEST_TITLE,
        label="Title",
        help_text="Stands before the name in lists and comparisons; empty for none.",
    )


class WhatIfForm(forms.Form):
    """Changes to a finished plan's inputs."""

    arrival_seconds = forms.FloatField(**limits(0.001, 86_400, "s"), label="Seconds between requests")
    input_tokens = forms.IntegerField(**limits(1, 1_000_000), label="Input tokens")
    output_tokens = forms.IntegerField(**limits(1, 1_000_000), label="Output tokens")
    min_tokens_per_second = forms.FloatField(**limits(0.01, 10_000, "tokens/s"), label="Floor (tokens/s)")
    model = forms.ChoiceField(required=False, label="Model")
    without = ChipsField(label="Leave out")
    added = ChipsField(label="Add a device of the lab")
    twins = ChipsField(label="Add one that does not exist")

    def __init__(self, *args: Any, cluster: dict[str, Any], offers: Alternatives, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        names = [device["name"] for device in cluster["devices"]]
        self.device_count = len(names)
        self.context_tokens = cluster["workload"]["context_tokens"]
        planned = [("", f"{cluster['model']['name']} (as planned)")]
        offered = {
            "model": [*planned, *offers.models],
            "without": [(name, name) for name in names],
            "added": offers.devices,
            "twins": offers.twins,
        }
        for name, choices in offered.items():
            field = self.fields[name]
            assert isinstance(field, forms.ChoiceField)
            field.choices = choices
        self.offers = offers
        for name, value in (cluster["workload"] | cluster["policy"]).items():
            if name in self.fields:
                self.fields[name].initial = value
        for bound in (*self.numbers(), self["model"]):
            bound.field.widget.attrs["aria-describedby"] = f"{bound.auto_id}_error"

    def numbers(self) -> list[forms.BoundField]:
        return [self[name] for name in (*WHAT_IF_WORKLOAD, *WHAT_IF_POLICY)]

    def chips(self) -> list[forms.BoundField]:
        """Groups of devices to tick, where there are any."""
        offered = {"without": True, "added": self.offers.devices, "twins": self.offers.twins}
        return [self[name] for name, choices in offered.items() if choices]

    def shown(self) -> list[forms.BoundField]:
        """The fields that are on the page, each with a place for its errors."""
        return [*self.numbers(), *([self["model"]] if self.offers.models else []), *self.chips()]

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        left = self.device_count - len(cleaned.get("without", ()))
        if left + len(cleaned.get("added", ())) + len(cleaned.get("twins", ())) < 1:
            self.add_error("without", "Leave at least one device in.")
        needed = cleaned.get("input_tokens", 0) + cleaned.get("output_tokens", 0)
        if needed > self.context_tokens:
            text = (
                f"Together with the prompt {needed:,} tokens, and a slot holds {self.context_tokens:,}: lower one of "
                "the two, or make a new plan with a longer context by “Change the inputs”."
            )
            self.add_error("output_tokens", text)
        return cleaned

    def changes(self) -> Changes:
        data = self.cleaned_data
        return Changes(
            workload={name: data[name] for name in WHAT_IF_WORKLOAD},
            policy={name: data[name] for name in WHAT_IF_POLICY},
            without=data["without"],
            twins=data["twins"],
            added=[int(key) for key in data["added"]],
            model_id=int(data["model"]) if data["model"] else None,
        )

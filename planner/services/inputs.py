"""The inputs of a finished plan with something changed: numbers, devices, the model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from inventory.models import LanguageModel
from planner.models import PlanRun
from planner.services.alternatives import with_model, with_registered

Json = dict[str, Any]
TWIN_ROOT = 90  # of the 100 characters that a name may have


@dataclass(frozen=True)
class Changes:
    """What a person asks to be different; devices by their name in the cluster file, registered ones by id."""

    workload: Mapping[str, Any] = field(default_factory=dict)
    policy: Mapping[str, Any] = field(default_factory=dict)
    without: Collection[str] = ()
    twins: Sequence[str] = ()
    added: Sequence[int] = ()
    model_id: int | None = None


@dataclass(frozen=True)
class Inputs:
    """A cluster file with what stands behind it; `remarks` say which of its numbers nobody has measured."""

    cluster: Json
    model: LanguageModel | None
    device_ids: dict[str, int]
    remarks: list[str]


def changed_inputs(run: PlanRun, changes: Changes) -> Inputs:
    """The inputs of `run` with the changes; whether they make sense is for the planner to say."""
    cluster, ids, model = changed_cluster(run.cluster, changes), dict(run.device_ids), run.model
    remarks: list[str] = []
    if changes.model_id is not None:
        assert run.model is not None, "another model is offered only where that of the plan is known"
        model = LanguageModel.objects.get(pk=changes.model_id)
        cluster = with_model(cluster, ids, run.model, model, remarks)
    if changes.added:
        assert model is not None and run.model is not None, (
            "devices are offered only where the model is known"
        )
        cluster = with_registered(cluster, ids, [model, run.model], changes.added, remarks)
    for name in changes.twins:
        cluster = with_twin(cluster, name)
        twin = cluster["devices"][-1]["name"]
        remarks.append(
            f"{twin} does not exist: it counts as a copy of {name}, on links like those of {name}."
        )
    cluster = without_devices(cluster, changes.without)
    if remarks:
        cluster = {**cluster, "note": " ".join([*remarks, cluster.get("note", "")]).strip()}
    kept = {device["name"] for device in cluster["devices"]}
    # A plan that counts on a device that does not exist has nothing to be deployed on.
    behind = {} if changes.twins else {name: pk for name, pk in ids.items() if name in kept}
    return Inputs(cluster, model, behind, remarks)


def changed_cluster(cluster: Json, changes: Changes) -> Json:
    """The cluster file with its numbers replaced."""
    return {
        **cluster,
        "workload": {**cluster["workload"], **changes.workload},
        "policy": {**cluster["policy"], **changes.policy},
    }


def without_devices(cluster: Json, names: Collection[str]) -> Json:
    pairs = cluster["links"].get("pairs", [])
    kept = [pair for pair in pairs if pair["a"] not in names and pair["b"] not in names]
    return {
        **cluster,
        "links": {**cluster["links"], "pairs": kept} if pairs else cluster["links"],
        "devices": [device for device in cluster["devices"] if device["name"] not in names],
    }


def with_twin(cluster: Json, name: str) -> Json:
    """The cluster with one more device like the named one, which has the same links; it comes last."""
    original = next(device for device in cluster["devices"] if device["name"] == name)
    taken = {device["name"] for device in cluster["devices"]}
    twin = next(text for number in count(2) if (text := f"{name[:TWIN_ROOT]} no. {number}") not in taken)
    pairs = cluster["links"].get("pairs", [])
    more = [
        {**pair, "a": twin if pair["a"] == name else pair["a"], "b": twin if pair["b"] == name else pair["b"]}
        for pair in pairs
        if name in (pair["a"], pair["b"])
    ]
    return {
        **cluster,
        "links": {**cluster["links"], "pairs": [*pairs, *more]} if pairs else cluster["links"],
        "devices": [*cluster["devices"], {**original, "name": twin}],
    }

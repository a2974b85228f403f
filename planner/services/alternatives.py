"""Other models and more devices for a finished plan: what may be offered, and with which latencies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inventory.core.model_shape import ModelShape
from inventory.core.other_model import decode_factor, estimated_tables, prefill_factor
from inventory.core.quantities import counted, significant
from inventory.models import Device, LanguageModel, Profile
from planner import from_inventory
from planner.charts.words import ESTIMATED
from planner.models import PlanRun

Json = dict[str, Any]
PROMPT_TOKENS = 512  # of the factor that is told


@dataclass(frozen=True)
class Alternatives:
    """Keys and labels of what a what-if may ask for; `left` says why other devices are not on offer."""

    models: list[tuple[str, str]]
    devices: list[tuple[str, str]]
    twins: list[tuple[str, str]]
    left: list[str]


def alternatives(run: PlanRun) -> Alternatives:
    """One more of each kind; where the model is registered also the other models and the other usable devices."""
    twins = one_of_each_kind(run.cluster)
    if run.model is None:
        return Alternatives([], [], twins, [])
    timed: dict[int, set[int]] = {}
    for device_id, model_id in Profile.objects.current().values_list("device_id", "model_id"):
        timed.setdefault(device_id, set()).add(model_id)
    models = [
        (str(model.pk), f"{model} ({how_known(model, run.device_ids, len(run.cluster['devices']), timed)})")
        for model in LanguageModel.objects.exclude(pk=run.model.pk).defer("shape")
    ]
    names = {device["name"] for device in run.cluster["devices"]}
    others = Device.objects.exclude(pk__in=run.device_ids.values()).exclude(name__in=names)
    devices, left = [], []
    for device in others:
        gap = from_inventory.device_gap(device, run.model, has_profile=bool(timed.get(device.pk)))
        if gap:
            left.append(gap.text)
        else:
            how = "measured" if run.model.pk in timed[device.pk] else "estimated"
            devices.append((str(device.pk), f"{device} ({how})"))
    return Alternatives(models, devices, twins, left)


def one_of_each_kind(cluster: Json) -> list[tuple[str, str]]:
    """The first device of each kind, which may be there once more."""
    firsts: dict[str, str] = {}
    for device in cluster["devices"]:
        firsts.setdefault(device["kind"], device["name"])
    return [(name, f"one more like {name}") for name in firsts.values()]


def how_known(
    model: LanguageModel, device_ids: Mapping[str, int], n_devices: int, timed: Mapping[int, set[int]]
) -> str:
    measured = sum(model.pk in timed.get(pk, set()) for pk in device_ids.values())
    if measured == n_devices:
        return "measured"
    return f"measured on {measured} of {n_devices}, else estimated" if measured else "estimated"


def with_model(
    cluster: Json,
    device_ids: Mapping[str, int],
    timed: LanguageModel,
    other: LanguageModel,
    remarks: list[str],
) -> Json:
    """The cluster for `other`: measured latencies where there are some, else estimated from those of `timed`."""
    devices = list(Device.objects.filter(pk__in=device_ids.values()))
    profiles = from_inventory.current_profiles(other, devices)
    holders = from_inventory.holders_of(other, devices)
    behind = {device.pk: device for device in devices}
    shape, old = ModelShape.from_dict(other.shape), ModelShape.from_dict(timed.shape)
    depth = from_inventory.mean_context_tokens(cluster["workload"])
    entries, estimated = [], []
    for entry in cluster["devices"]:
        device = behind.get(device_ids.get(entry["name"], 0))
        profile = profiles.get(device.pk) if device else None
        if profile is None:
            estimated.append(entry["name"])
        tables = profile.tables_at(depth) if profile else estimated_tables(entry, old, shape)
        is_able = bool(device.llama.get("server_path")) if device else entry.get("can_be_master", True)
        can_be_master = is_able and (device is None or device in holders)
        entries.append({**entry, **tables, "can_be_master": can_be_master})
    remarks += estimate_remarks(estimated, timed, old, shape)
    remarks += from_inventory.file_notes(other, holders, devices)
    remarks += from_inventory.handover_notes(shape)
    return {**cluster, **of_model(cluster, other, shape), "devices": from_inventory.with_kinds(entries)}


def of_model(cluster: Json, model: LanguageModel, shape: ModelShape) -> Json:
    policy = cluster["policy"]
    context = cluster["workload"]["context_tokens"]
    return {
        "model": from_inventory.model_entry(model.name, shape, context),
        "policy": {**policy, "allow_mixed": policy["allow_mixed"] or not shape.can_hand_over},
    }


def with_registered(
    cluster: Json,
    device_ids: dict[str, int],
    models: Sequence[LanguageModel],
    added: Sequence[int],
    remarks: list[str],
) -> Json:
    """The cluster with more registered devices, whose ids are added to `device_ids`.

    It is for the first of `models`; where a device was not timed with it, those behind it are estimated from first.
    """
    model = models[0]
    there = list(Device.objects.filter(pk__in=device_ids.values()))
    more = list(Device.objects.filter(pk__in=added))
    memory = from_inventory.counted_memory([*there, *more])
    cluster = with_shared_memory(cluster, device_ids, there, memory)
    known = from_inventory.machine_notes(there)
    remarks += [note for note in from_inventory.machine_notes([*there, *more]) if note not in known]
    shape = ModelShape.from_dict(model.shape)
    holders = from_inventory.holders_of(model, [*there, *more])
    depth = from_inventory.mean_context_tokens(cluster["workload"])
    entries = []
    for device in more:
        profile = best_profile(device, models)
        tables = profile.tables_at(depth)
        if profile.model_id != model.pk:
            timed = ModelShape.from_dict(profile.model.shape)
            tables = estimated_tables(tables, timed, shape)
            remarks += estimate_remarks([device.name], profile.model, timed, shape)
        is_holder = device in holders
        entries.append(from_inventory.device_entry(device, memory[device.pk], tables, has_file=is_holder))
    links = with_links(cluster, device_ids, there, more, remarks)
    device_ids |= {device.name: device.pk for device in more}
    remarks += from_inventory.file_notes(model, holders, more)
    return {
        **cluster,
        "links": links,
        "devices": from_inventory.with_kinds([*map(dict, cluster["devices"]), *entries]),
    }


def with_shared_memory(
    cluster: Json,
    device_ids: Mapping[str, int],
    there: Sequence[Device],
    memory: Mapping[int, tuple[int, int]],
) -> Json:
    """The cluster with less memory on the devices that share it, being one machine, with a new one."""
    alone = from_inventory.counted_memory(there)
    entries = []
    for entry in cluster["devices"]:
        pk = device_ids.get(entry["name"], 0)
        lost = [before - now for before, now in zip(alone.get(pk, ()), memory.get(pk, ()), strict=True)]
        if any(lost):
            gpu, ram = entry["gpu_usable_bytes"] - lost[0], entry["ram_usable_bytes"] - lost[1]
            entry = {**entry, "gpu_usable_bytes": max(gpu, 0), "ram_usable_bytes": max(ram, 0)}
        entries.append(entry)
    return {**cluster, "devices": entries}


def best_profile(device: Device, models: Sequence[LanguageModel]) -> Profile:
    """Of the first of these models that was timed there, else the newest: there is one, or it is not on offer."""
    found = {
        row.model: row for row in Profile.objects.current().filter(device=device).select_related("model")
    }
    return next((found[model] for model in models if model in found), next(iter(found.values())))


def with_links(
    cluster: Json,
    device_ids: Mapping[str, int],
    there: Sequence[Device],
    more: Sequence[Device],
    remarks: list[str],
) -> Json:
    """The links of the cluster with those measured to the new devices; others are like the default."""
    planned_as = {pk: name for name, pk in device_ids.items()}
    names = {device.name: planned_as.get(device.pk, device.name) for device in [*there, *more]}
    new = {device.name for device in more}
    measured, _ = from_inventory.links_of([*there, *more])
    pairs = [
        {**pair, "a": names[pair["a"]], "b": names[pair["b"]]}
        for pair in measured.get("pairs", [])
        if new & {pair["a"], pair["b"]}
    ]
    wanted = len(more) * len(cluster["devices"]) + len(more) * (len(more) - 1) // 2
    if len(pairs) < wanted:
        missing = counted(wanted - len(pairs), "link")
        remarks.append(f"{missing} of {', '.join(sorted(new))} not measured: taken to be like most others.")
    outdated = from_inventory.outdated_pairs([*there, *more])
    remarks += from_inventory.outdated_notes([pair for pair in outdated if new & set(pair)])
    old = cluster["links"].get("pairs", [])
    return {**cluster["links"], "pairs": [*old, *pairs]} if old or pairs else cluster["links"]


def estimate_remarks(
    names: Sequence[str], timed: LanguageModel, old: ModelShape, new: ModelShape
) -> list[str]:
    if not names:
        return []
    decode = significant(decode_factor(old, new, 1), 2)
    prefill = significant(prefill_factor(old, new, PROMPT_TOKENS), 2)
    return [
        f"{ESTIMATED}, on {', '.join(names)}: a block takes {decode} times as long for a token as one of "
        f"{timed}, by the bytes that it reads, and {prefill} times for a prompt, by its weights. "
        "Such estimates may be off by a factor of two."
    ]

"""Inventory rows -> cluster file: the bridge between what the lab owns and what the planner plans with."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import median
from typing import Any

from inventory.core.model_fit import slot_overhead_bytes
from inventory.core.model_shape import BlockShape, ModelShape
from inventory.core.profile import DEEP
from inventory.core.quantities import bytes_text, counted
from inventory.models import Device, LanguageModel, Link, ModelFile, Profile

FORMAT = "e2llm-cluster/1"
WORDS = frozenset({"name", "hardware", "kind", "main_pool"})  # what a device is called, beside its numbers
NOISY_PROFILE = "is noisy: "  # with these words a cluster file's note says of a profile that it is
OUTDATED_LINKS = "Outdated links"  # so begins what a cluster file's note says of such links
ASSUMED_LINK = {"bytes_per_second": 115e6, "latency_seconds": 0.00035}
HEAVY_RUN = 4  # a stage usually holds a quarter of the blocks or more
SHORT_CONTEXT_TOKENS = 256  # below, what a step reads of the cache is little beside the weights
NEVER_MOVED_BYTES = 10**15  # the state of recurrent models: so large that no plan hands it over


@dataclass(frozen=True)
class Missing:
    """One thing that planning needs and the inventory lacks; `what` names the kind for the page's link."""

    what: str
    device_id: int | None
    text: str


class CannotPlan(Exception):
    """The inventory does not hold what a plan needs; `missing` lists every gap with its remedy."""

    def __init__(self, missing: Sequence[Missing]) -> None:
        super().__init__(" ".join(item.text for item in missing))
        self.missing = list(missing)


def cluster_of(
    model: LanguageModel, devices: Sequence[Device], workload: dict[str, Any], policy: dict[str, Any]
) -> dict[str, Any]:
    """The cluster file of these devices; CannotPlan names everything that is missing at once."""
    gaps = missing(model, devices)
    if gaps:
        raise CannotPlan(gaps)
    shape = ModelShape.from_dict(model.shape)
    profiles = current_profiles(model, devices)
    links, link_note = links_of(devices)
    policy = {**policy, "allow_mixed": policy["allow_mixed"] or not shape.can_hand_over}
    holders = holders_of(model, devices)
    depth = mean_context_tokens(workload)
    memory = counted_memory(devices)
    entries = [
        device_entry(
            device,
            less_overhead(memory[device.pk], profiles[device.pk]),
            profiles[device.pk].tables_at(depth),
            has_file=device in holders,
        )
        for device in devices
    ]
    notes = [
        link_note,
        *outdated_notes(outdated_pairs(devices)),
        *file_notes(model, holders, devices),
        *machine_notes(devices),
        *overhead_notes(profiles, devices),
        *profile_notes(profiles, devices),
        *depth_notes(profiles, devices, depth),
        *handover_notes(shape),
    ]
    return {
        "format": FORMAT,
        "note": " ".join(note for note in notes if note),
        "model": model_entry(model.name, shape, workload["context_tokens"])
        | {"embedding_bytes": embedding_bytes(shape, devices)},
        "workload": workload,
        "policy": policy,
        "links": links,
        "devices": with_kinds(entries),
    }


def missing(model: LanguageModel, devices: Sequence[Device]) -> list[Missing]:
    """Everything that keeps these devices out of a plan for this model, each with its remedy."""
    if not devices:
        return [Missing("device", None, "No device is chosen: choose at least one, or add a device first.")]
    if model.shape.get("pooling"):
        return [embeds(model)]
    profiles = current_profiles(model, devices)
    gaps = [device_gap(device, model, device.pk in profiles) for device in devices]
    return [gap for gap in gaps if gap is not None]


def standing_gaps(model: LanguageModel, devices: Sequence[Device]) -> list[Missing]:
    """What keeps devices out of a plan that neither a probe nor a profile, which come by themselves, can mend."""
    if model.shape.get("pooling"):
        return [embeds(model)]
    gaps = [device_gap(device, model, has_profile=True) for device in devices]
    return [gap for gap in gaps if gap is not None and gap.what != "probe"]


def embeds(model: LanguageModel) -> Missing:
    """Why a model that makes embeddings is not planned."""
    text = (
        f"{model} makes embeddings and no text, so there are no tokens to plan for: "
        "serve it whole on one device, from the model's page."
    )
    return Missing("model", None, text)


def device_gap(device: Device, model: LanguageModel, has_profile: bool) -> Missing | None:
    """The first thing that keeps a device out of a plan for the model."""
    if device.in_maintenance:
        text = f"{device} is in maintenance: end the maintenance, or leave the device out."
        return Missing("maintenance", device.pk, text)
    if device.closed_reason:
        text = f"{device} is {device.closed_reason}: wait, change its hours on its page, or leave the device out."
        return Missing("availability", device.pk, text)
    if device.probed_at is None:
        return Missing("probe", device.pk, f"{device} was never probed: probe it on its page.")
    if not device.llama:
        text = (
            f"No llama.cpp was found on {device}: install llama-server there and probe it again, "
            "or leave the device out."
        )
        return Missing("llama", device.pk, text)
    if not device.gpu_usable_bytes:
        text = (
            f"{device} has no usable memory that is known: probe it again, enter the memory on its page, "
            "or leave the device out."
        )
        return Missing("memory", device.pk, text)
    if not has_profile:
        return Missing("profile", device.pk, f"No profile of {model} on {device}: run a profile.")
    return None


def current_profiles(model: LanguageModel, devices: Sequence[Device]) -> dict[int, Profile]:
    rows = (
        Profile.objects.current()
        .select_related("model")
        .filter(model=model, device__in=[device.pk for device in devices])
    )
    return {profile.device_id: profile for profile in rows}


def holders_of(model: LanguageModel, devices: Sequence[Device]) -> list[Device]:
    """Devices with a copy of the model; all of them while no copy is known anywhere."""
    files = ModelFile.objects.filter(model=model, device__in=[device.pk for device in devices])
    having = set(files.values_list("device_id", flat=True))
    return [device for device in devices if device.pk in having] or list(devices)


def model_entry(name: str, shape: ModelShape, context_tokens: int) -> dict[str, Any]:
    """The file's `model`; where KV caches can be handed over they are counted without windows, as that needs."""
    full_cache = shape.can_hand_over
    request_bytes = shape.handover_bytes_per_request() if shape.can_hand_over else NEVER_MOVED_BYTES
    entry = {
        "name": name,
        "blocks": len(shape.blocks),
        "embedding_length": shape.embedding_length,
        **block_sizes(shape.blocks, context_tokens, full_cache),
        "output_bytes": shape.output_bytes,
        "embedding_bytes": shape.embedding_bytes,
        "logits_buffer_bytes": 0,
        "logits_slot_bytes": shape.logits_bytes(1),
        "master_compute_bytes": shape.compute_bytes(),
        "worker_compute_bytes": shape.compute_bytes(master=False),
        "slot_overhead_bytes": slot_overhead_bytes(shape, context_tokens, full_cache=full_cache),
        "kv_handoff_bytes_per_token": shape.handover_bytes_per_token(),
        "kv_handoff_bytes_per_request": request_bytes,
    }
    kinds = {kind: [block for block in shape.blocks if block.kind == kind] for kind in shape.block_kinds}
    sizes = {kind: block_sizes(blocks, context_tokens, full_cache) for kind, blocks in kinds.items()}
    if len({tuple(size.values()) for size in sizes.values()}) > 1:
        entry["block_kinds"] = [block.kind for block in shape.blocks]
        entry["kinds"] = sizes
    return entry


def embedding_bytes(shape: ModelShape, devices: Sequence[Device]) -> int:
    """The file has one number for all devices: a tied embedding is in memory once where none of them has a GPU."""
    has_gpu = any(device.main_pool != "cpu" for device in devices)
    return shape.embedding_bytes if has_gpu else shape.untied_embedding_bytes


def block_sizes(blocks: Sequence[BlockShape], context_tokens: int, full_cache: bool) -> dict[str, int]:
    kv_bytes = [block.kv_bytes(context_tokens, full_cache=full_cache) for block in blocks]
    return {
        "block_bytes": heaviest_mean([block.size_bytes for block in blocks]),
        "block_resident_bytes": heaviest_mean([block.resident_bytes for block in blocks]),
        "kv_slot_block_bytes": ceil(sum(kv_bytes) / len(kv_bytes)),
    }


def heaviest_mean(sizes: Sequence[int]) -> int:
    """Mean of the heaviest run of a quarter of the blocks.

    Mixed quantisations (Q4_K_M) store the first and last blocks in larger types: with the mean over all
    blocks the device that gets those would run out of memory.
    """
    run = max(len(sizes) // HEAVY_RUN, 1)
    return ceil(max(sum(sizes[start : start + run]) for start in range(len(sizes) - run + 1)) / run)


def mean_context_tokens(workload: dict[str, Any]) -> float:
    """What a request's cache holds on average while it is decoded."""
    return float(workload["input_tokens"] + workload["output_tokens"] / 2)


def device_entry(
    device: Device,
    memory: tuple[int, int],
    tables: dict[str, Any],
    *,
    has_file: bool,
) -> dict[str, Any]:
    """One device of the file with its two latency tables."""
    gpu_bytes, ram_bytes = memory
    return {
        "name": device.name,
        "hardware": hardware_text(device),
        "gpu_usable_bytes": gpu_bytes,
        "ram_usable_bytes": ram_bytes,
        "main_pool": device.main_pool,
        "can_be_master": has_file and bool(device.llama.get("server_path")),
        **tables,
    }


def less_overhead(memory: tuple[int, int], profile: Profile) -> tuple[int, int]:
    """The main pool without what a deployment was seen to take there beyond its prediction."""
    return max(memory[0] - profile.memory_overhead_bytes, 0), memory[1]


def hardware_text(device: Device) -> str:
    gpus = [gpu["description"] for gpu in device.hardware.get("gpus", [])]
    parts = [*gpus, device.hardware.get("cpu_model", "")]
    return " / ".join(part for part in parts if part) or device.name


def with_kinds(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Give devices with equal numbers one kind, named after the first of them: the planner may swap them."""
    firsts: list[tuple[dict[str, Any], str]] = []
    for entry in entries:
        numbers = {key: value for key, value in entry.items() if key not in WORDS}
        alike = next((name for first, name in firsts if first == numbers), None)
        entry["kind"] = alike or entry["name"]
        if alike is None:
            firsts.append((numbers, entry["name"]))
    return entries


def links_of(devices: Sequence[Device]) -> tuple[dict[str, Any], str]:
    """The file's `links`, and a sentence on where they come from."""
    ids = [device.pk for device in devices]
    rows = Link.objects.filter(source__in=ids, target__in=ids).select_related("source", "target")
    pairs: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        a, b = sorted([row.source.name, row.target.name])
        known = pairs.get(
            (a, b), {"a": a, "b": b, "bytes_per_second": row.bytes_per_second, "latency_seconds": 0.0}
        )
        known["bytes_per_second"] = min(known["bytes_per_second"], row.bytes_per_second)
        # A row holds the round trip; a hop of the cost model is one way.
        known["latency_seconds"] = max(known["latency_seconds"], row.latency_seconds / 2)
        pairs[a, b] = known
    if not pairs:
        note = (
            "" if len(ids) < 2 else "No link was measured: 920 Mb/s and 0.35 ms one way are assumed for all."
        )
        return {"default": ASSUMED_LINK}, note
    default = {
        key: median(pair[key] for pair in pairs.values()) for key in ("bytes_per_second", "latency_seconds")
    }
    unmeasured = len(ids) * (len(ids) - 1) // 2 - len(pairs)
    note = f"{counted(len(pairs), 'link')} measured."
    if unmeasured:
        note += f" Assumed to be like the median of those: {counted(unmeasured, 'other')}."
    return {"default": default, "pairs": [pairs[key] for key in sorted(pairs)]}, note


def outdated_pairs(devices: Sequence[Device]) -> list[tuple[str, str]]:
    """Names of the two ends of each link that was measured before the address of one of them changed."""
    ids = [device.pk for device in devices]
    links = Link.objects.outdated().filter(source__in=ids, target__in=ids)
    ends = links.values_list("source__name", "target__name")
    return sorted({(min(one, other), max(one, other)) for one, other in ends})


def outdated_notes(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """What a plan says of the outdated links that it counts with."""
    names = ", ".join(f"{one} – {other}" for one, other in pairs)
    return [f"{OUTDATED_LINKS}, measured before an address changed: {names}."] if pairs else []


def file_notes(model: LanguageModel, holders: Sequence[Device], devices: Sequence[Device]) -> list[str]:
    """A master reads the model from its own disk, so who has no copy is planned as a worker."""
    return [
        f"{device} has no copy of {model} and is planned as a worker only: copy the model there to change that."
        for device in devices
        if device not in holders
    ]


def counted_memory(devices: Sequence[Device]) -> dict[int, tuple[int, int]]:
    """Bytes of the main and the second pool by device id; what devices share, being one machine, is counted once.

    A size set by hand stays; the others of that machine get equal parts of what is left.
    """
    sizes = {device.pk: [device.gpu_usable_bytes or 0, device.ram_usable_bytes or 0] for device in devices}
    pools: dict[tuple[str, str], list[tuple[Device, int]]] = defaultdict(list)
    for device in devices:
        for index, pool in enumerate(pools_of(device)):
            pools[machine_of(device), pool].append((device, index))
    for members in pools.values():
        free = [(device, index) for device, index in members if not device.memory_override_reason]
        taken = sum(sizes[device.pk][index] for device, index in members if device.memory_override_reason)
        whole = max((sizes[device.pk][index] for device, index in free), default=0)
        for device, index in free:
            sizes[device.pk][index] = max(whole - taken, 0) // len(free)
    return {pk: (gpu_bytes, ram_bytes) for pk, (gpu_bytes, ram_bytes) in sizes.items()}


def pools_of(device: Device) -> list[str]:
    """Main and second pool, so named that two devices of one machine name the same memory alike."""
    main = device.main_pool_device if device.main_pool == "gpu" else "RAM"
    return [main, "RAM"] if main != "RAM" else [main]


def machine_of(device: Device) -> str:
    """Equal for devices that share memory; containers with limits of their own share none."""
    is_limited = "cgroup" in device.hardware.get("sources", {}).get("memory", "")
    return device.boot_id if device.boot_id and not is_limited else f"device {device.pk}"


def machine_notes(devices: Sequence[Device]) -> list[str]:
    machines: dict[str, list[Device]] = defaultdict(list)
    for device in devices:
        machines[device.boot_id or f"device {device.pk}"].append(device)
    return [machine_note(members) for members in machines.values() if len(members) > 1]


def machine_note(members: Sequence[Device]) -> str:
    names = " and ".join(device.name for device in members)
    memory = counted_memory(members)
    if all(memory[one.pk] == (one.gpu_usable_bytes or 0, one.ram_usable_bytes or 0) for one in members):
        return f"{names} are one machine: their memory and speed are planned as if each had its own."
    return f"{names} are one machine: its memory is counted once and split, its speed as if each had its own."


def overhead_notes(profiles: Mapping[int, Profile], devices: Sequence[Device]) -> list[str]:
    """What is kept free on devices, so that a plan shows less memory there than they have."""
    kept = [(device, profiles[device.pk]) for device in devices if device.pk in profiles]
    return [
        f"{bytes_text(profile.memory_overhead_bytes)} of {device} are kept free: "
        f"{profile.made_under['memory']['deployment']} took more there than predicted."
        for device, profile in kept
        if profile.memory_overhead_bytes
    ]


def profile_notes(profiles: dict[int, Profile], devices: Sequence[Device]) -> list[str]:
    """What a plan says of the stale and the noisy profiles that it counts with."""
    known = [(device, profiles[device.pk]) for device in devices if device.pk in profiles]
    return [
        *(
            f"The profile of {device} is stale: {made.stale_reason}."
            for device, made in known
            if made.stale_reason
        ),
        *(f"The profile of {device} is {made.doubt_text}." for device, made in known if made.doubt_text),
    ]


def depth_notes(profiles: dict[int, Profile], devices: Sequence[Device], context_tokens: float) -> list[str]:
    """Which profiles know nothing of long contexts, where that matters."""
    shallow = [device.name for device in devices if DEEP not in profiles[device.pk].tables]
    if not shallow or context_tokens < SHORT_CONTEXT_TOKENS:
        return []
    names = ", ".join(shallow)
    return [f"Timed at short contexts only, so steps at {context_tokens:.0f} tokens may be slower: {names}."]


def handover_notes(shape: ModelShape) -> list[str]:
    if shape.can_hand_over:
        return []
    return ["This model keeps recurrent state, which cannot be handed over: only mixed replicas are planned."]

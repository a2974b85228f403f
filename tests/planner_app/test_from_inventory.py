"""Rows of the inventory as a cluster file, and measurements of a cluster file as rows."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from accounts.models import AuditEntry
from inventory.core.model_fit import Setting, stage_memory_of
from inventory.core.model_shape import BlockShape
from inventory.models import Device, LanguageModel, Link, ModelFile, Profile
from planner import services
from planner.core.errors import BadDocument
from planner.core.memory import block_sums, stage_bytes
from planner.core.problem import Problem
from planner.from_inventory import (
    CannotPlan,
    block_sizes,
    cluster_of,
    counted_memory,
    embedding_bytes,
    heaviest_mean,
    missing,
    model_entry,
)
from tests.planner_app.conftest import BLOCK, shape

pytestmark = pytest.mark.django_db

WORKLOAD = {
    "input_tokens": 100, "output_tokens": 50, "arrival_seconds": 1.0, "requests": 10, "context_tokens": 1024,
}  # fmt: skip
POLICY = {
    "min_tokens_per_second": 5.0, "max_slots": 4, "runtime": "serial", "topology": "star",
    "allow_mixed": True, "allow_idle": True, "seed": 0,
}  # fmt: skip
FULL = BlockShape("full", {}, 1000, 0, 8, None, 0)
WINDOW = BlockShape("window", {}, 1000, 0, 8, 128, 0)


def lab(model: LanguageModel, devices: list[Device]) -> dict[str, Any]:
    return cluster_of(model, devices, WORKLOAD, POLICY)


def add_link(source: Device, target: Device, bytes_per_second: float, round_trip: float) -> None:
    Link.objects.create(
        source=source, target=target, bytes_per_second=bytes_per_second, latency_seconds=round_trip,
        method="test", measured_at=timezone.now(),
    )  # fmt: skip


def test_the_file_is_one_the_planner_reads(model: LanguageModel, devices: list[Device]) -> None:
    problem = Problem.from_dict(lab(model, devices))
    assert [device.name for device in problem.devices] == [device.name for device in devices]
    assert problem.model.blocks == 24


def test_a_device_lends_all_of_its_memory_and_buffers_are_counted_as_used(
    model: LanguageModel, devices: list[Device]
) -> None:
    document = lab(model, devices)
    assert document["devices"][0]["gpu_usable_bytes"] == devices[0].gpu_usable_bytes
    assert document["model"]["master_compute_bytes"] == shape().compute_bytes()
    assert document["model"]["worker_compute_bytes"] == shape().compute_bytes(master=False)
    assert document["model"]["logits_slot_bytes"] == shape().vocabulary * 4


@pytest.mark.parametrize("is_tied", [True, False])
def test_a_plan_takes_what_the_inventory_predicts_for_that_split(
    is_tied: bool, model: LanguageModel, devices: list[Device]
) -> None:
    ends = 100_000_000 if is_tied else 200_000_000
    made = shape(is_tied=is_tied, weight_bytes=24 * BLOCK.size_bytes + ends)
    Device.objects.update(ram_usable_bytes=0)
    model.shape = made.to_dict()
    problem = Problem.from_dict(lab(model, list(Device.objects.all())))
    setting = Setting(WORKLOAD["context_tokens"], slots=3)
    for blocks, master in ((24, True), (8, True), (16, False)):
        found = stage_bytes(
            block_sums(problem.model), problem.model, problem.devices[0], 3, (blocks, 0), master
        )
        predicted = stage_memory_of(made, setting, made.blocks[:blocks], master=master)
        assert found.gpu_bytes == predicted.total_bytes


def test_a_tied_embedding_counts_once_where_no_device_has_a_gpu(devices: list[Device]) -> None:
    tied, untied = shape(is_tied=True, embedding_bytes=120_000_000), shape(is_tied=False)
    hosts = [Device(hardware={"gpus": []}), Device(hardware={"gpus": []})]
    assert embedding_bytes(tied, hosts) == 20_000_000  # what stands beside the token embedding
    assert embedding_bytes(untied, hosts) == untied.embedding_bytes
    with_gpu = Device(hardware={"gpus": [{"name": "CUDA0", "description": "RTX", "shares_memory": False}]})
    assert embedding_bytes(tied, [*hosts, with_gpu]) == tied.embedding_bytes


def test_each_slot_takes_its_part_of_the_mask(model: LanguageModel, devices: list[Device]) -> None:
    context = WORKLOAD["context_tokens"]
    assert lab(model, devices)["model"]["slot_overhead_bytes"] == 512 * 2 * context


def test_decode_steps_are_those_at_the_workloads_mean_context(
    model: LanguageModel, devices: list[Device]
) -> None:
    made = Profile.objects.get(device=devices[0])
    plain = made.tables["decode"]["gpu_block_seconds"]
    deep = {"context_tokens": 1000, "micro_batch": [1], "gpu_block_seconds": [plain[0] + 1.0]}
    made.tables["deep_decode"] = deep | {"cpu_block_seconds": [made.tables["decode"]["cpu_block_seconds"][0]]}
    made.save()
    entry = lab(model, devices)["devices"][0]
    assert entry["decode"]["gpu_block_seconds"][0] == pytest.approx(plain[0] + 0.125, rel=1e-3), (
        "100 + 50 / 2 tokens"
    )
    assert "deep_decode" not in entry


@pytest.mark.parametrize(
    ("hardware", "pool"),
    [
        ({"gpus": []}, "cpu"),
        ({"gpus": [{"name": "CUDA0", "description": "RTX 4090"}], "is_unified": False}, "gpu"),
        ({"gpus": [{"name": "MTL0", "description": "Apple M2"}], "is_unified": True}, "unified"),
    ],
)
def test_the_main_pool_is_what_the_probe_found(
    model: LanguageModel, devices: list[Device], hardware: dict[str, Any], pool: str
) -> None:
    Device.objects.filter(pk=devices[0].pk).update(hardware=hardware)
    devices[0].refresh_from_db()
    document = lab(model, devices)
    assert document["devices"][0]["main_pool"] == pool
    assert Problem.from_dict(document).to_dict()["devices"][0]["main_pool"] == pool


def test_unmeasured_links_are_assumed_and_the_file_says_so(
    model: LanguageModel, devices: list[Device]
) -> None:
    document = lab(model, devices)
    assert document["links"] == {"default": {"bytes_per_second": 115e6, "latency_seconds": 0.00035}}
    assert "assumed" in document["note"]


def test_the_slower_direction_counts_and_a_hop_is_half_a_round_trip(
    model: LanguageModel, devices: list[Device]
) -> None:
    add_link(devices[0], devices[1], 100e6, 0.002)
    add_link(devices[1], devices[0], 50e6, 0.004)
    add_link(devices[0], devices[2], 10e6, 0.001)
    document = lab(model, devices)
    first, second = document["links"]["pairs"]
    assert (first["a"], first["b"]) == (devices[0].name, devices[1].name)
    assert (first["bytes_per_second"], first["latency_seconds"]) == (50e6, 0.002)
    assert document["links"]["default"]["bytes_per_second"] == 30e6
    assert second["latency_seconds"] == 0.0005
    assert "like the median of those: 1 other." in document["note"]


def test_equal_devices_share_a_kind(model: LanguageModel, devices: list[Device]) -> None:
    twin = devices[0]
    profile = Profile.objects.get(device=twin)
    twin.pk, twin.name = None, "Dev.1b"
    twin.save()
    Profile.objects.create(
        device=twin, model=model, tables=profile.tables, residual=0.0, measured_at=timezone.now()
    )
    kinds = {entry["name"]: entry["kind"] for entry in lab(model, list(Device.objects.all()))["devices"]}
    assert kinds["Dev.1b"] == kinds["Dev.1"] == "Dev.1"
    assert kinds["Dev.2"] == "Dev.2"


def test_only_a_device_with_a_copy_of_the_model_is_a_master(
    model: LanguageModel, devices: list[Device]
) -> None:
    ModelFile.objects.create(
        model=model, device=devices[1], path="/models/tiny.gguf", size_bytes=1, seen_at=timezone.now()
    )
    document = lab(model, devices)
    assert [entry["can_be_master"] for entry in document["devices"]] == [False, True, False]
    assert f"{devices[0].name} has no copy of Tiny-10B" in document["note"]


def test_one_machine_under_two_names_is_mentioned(model: LanguageModel, devices: list[Device]) -> None:
    for device in devices[:2]:
        device.hardware = {**device.hardware, "boot_id": "same"}
        device.save()
    known = list(Device.objects.all())
    note = lab(model, known)["note"]
    assert "Dev.1 and Dev.2 are one machine: its memory is counted once and split" in note
    Device.objects.update(memory_override_reason="stands for three")
    assert (
        "memory and speed are planned as if each had its own"
        in lab(model, list(Device.objects.all()))["note"]
    )


def test_a_profile_far_off_its_fit_is_called_noisy(model: LanguageModel, devices: list[Device]) -> None:
    Profile.objects.filter(device=devices[0]).update(residual=1.59)
    assert "The profile of Dev.1 is noisy: 159 % off the fit; measure again" in lab(model, devices)["note"]
    assert "Dev.2 is noisy" not in lab(model, devices)["note"]


def test_memory_of_one_machine_is_counted_once(model: LanguageModel, devices: list[Device]) -> None:
    Device.objects.update(
        gpu_usable_bytes=12 * 10**9, ram_usable_bytes=0, hardware={"boot_id": "same", "gpus": []}
    )
    assert set(counted_memory(Device.objects.all()).values()) == {(4 * 10**9, 0)}
    Device.objects.filter(name="Dev.1").update(gpu_usable_bytes=2 * 10**9, memory_override_reason="by hand")
    assert sorted(counted_memory(Device.objects.all()).values()) == [
        (2 * 10**9, 0),
        (5 * 10**9, 0),
        (5 * 10**9, 0),
    ]
    limited = {"boot_id": "same", "gpus": [], "sources": {"memory": "cgroup memory limit"}}
    Device.objects.filter(name="Dev.2").update(hardware=limited)
    assert counted_memory(Device.objects.all())[devices[1].pk] == (12 * 10**9, 0)


def test_two_gpus_of_one_machine_share_its_ram_only(model: LanguageModel, devices: list[Device]) -> None:
    gpus = [{"name": "CUDA0", "description": "a"}, {"name": "CUDA1", "description": "b"}]
    Device.objects.update(gpu_usable_bytes=8, ram_usable_bytes=12, hardware={"boot_id": "same", "gpus": gpus})
    Device.objects.filter(name="Dev.2").update(chosen_gpu="CUDA1")
    pair = Device.objects.exclude(name="Dev.5")
    assert list(counted_memory(pair).values()) == [(8, 6), (8, 6)]


def test_every_gap_is_named_at_once(model: LanguageModel, devices: list[Device]) -> None:
    Device.objects.filter(pk=devices[0].pk).update(in_maintenance=True)
    Device.objects.filter(pk=devices[1].pk).update(llama={})
    Profile.objects.filter(device=devices[2]).delete()
    with pytest.raises(CannotPlan) as refused:
        lab(model, list(Device.objects.all()))
    assert [gap.what for gap in refused.value.missing] == ["maintenance", "llama", "profile"]
    assert [gap.what for gap in missing(model, [])] == ["device"]


def test_blocks_of_two_kinds_are_listed_when_their_cache_differs() -> None:
    mixed = shape(blocks=(FULL, WINDOW) * 6)
    entry = model_entry("m", replace(mixed, experts=0), 4096)
    assert "block_kinds" not in entry, "for a hand-over the windowed blocks keep the whole context"
    assert entry["kv_slot_block_bytes"] == 4096 * 8
    assert block_sizes([WINDOW], 4096, full_cache=False)["kv_slot_block_bytes"] == 768 * 8


def test_heavier_first_blocks_count_where_they_lie_together() -> None:
    assert heaviest_mean([10, 10, 10, 10]) == 10
    assert heaviest_mean([20, 20, *[10] * 6]) == 20


def test_recurrent_state_is_never_handed_over(model: LanguageModel, devices: list[Device]) -> None:
    recurrent = BlockShape("recurrent", {}, 400_000_000, 0, 0, None, 1_000_000)
    model.shape = shape(blocks=(recurrent,) * 24).to_dict()
    document = cluster_of(model, devices, WORKLOAD, {**POLICY, "allow_mixed": False})
    assert document["policy"]["allow_mixed"] is True
    found = services.what_if(document)
    assert found.plan is not None and found.plan.mode == "mixed"


def test_measurements_of_a_file_fill_gaps_and_replace_nothing(
    model: LanguageModel, devices: list[Device]
) -> None:
    add_link(devices[0], devices[1], 100e6, 0.002)
    document = lab(model, devices)
    Profile.objects.filter(device=devices[0]).delete()
    Link.objects.all().delete()
    Device.objects.filter(pk=devices[2].pk).update(name="Other")
    report = services.import_measurements(document)
    assert "Dev.1: profile of Tiny-10B" in report.taken
    assert [line.split(":")[0] for line in report.left] == ["Dev.2", "Dev.5"]
    assert Profile.objects.get(device=devices[0]).stale_reason
    assert sorted(Link.objects.values_list("latency_seconds", flat=True)) == [0.002, 0.002]


def test_an_import_is_shown_on_a_page_that_can_be_loaded_again(
    model: LanguageModel, devices: list[Device], admin_client: Client
) -> None:
    document = lab(model, devices)
    Profile.objects.filter(device=devices[0]).delete()
    sent = {"cluster": SimpleUploadedFile("lab.json", json.dumps(document).encode()), "measurements": "1"}
    answer = admin_client.post(reverse("planner:file"), sent | {"method": "ga", "seed": 1})
    assert (answer.status_code, answer.headers["Location"]) == (302, reverse("planner:measurements"))
    for _ in range(2):
        page = admin_client.get(answer.headers["Location"]).content.decode()
        assert "Dev.1: profile of Tiny-10B" in page
    assert AuditEntry.objects.filter(action="profiles.imported").count() == 1


def test_measurements_of_an_unknown_model_are_refused(model: LanguageModel, devices: list[Device]) -> None:
    document = lab(model, devices)
    model.delete()
    with pytest.raises(BadDocument, match="no model"):
        services.import_measurements(document)

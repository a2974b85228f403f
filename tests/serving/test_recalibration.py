"""New profiles from what a deployment did."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pytest
from django.test import Client
from django.utils import timezone

from inventory.models import Device, LanguageModel, Profile
from planner.core.plan import Plan
from planner.core.problem import Problem
from planner.core.search import SearchSettings, find_plan
from planner.core.servers import servers
from planner.from_inventory import cluster_of
from serving.core.calibration import Observation, adjustment, together
from serving.core.stage_memory import PlannedMemory, held_bytes
from serving.models import Deployment, ManagedProcess, Replica, RequestSample
from serving.services import recalibration
from serving.services.recalibration import CannotRecalibrate
from tests.planner_app.conftest import cluster_of as paper_cluster
from tests.planner_app.conftest import profiled_device, shape
from tests.planner_app.test_from_inventory import POLICY, WORKLOAD

SLOWER, FASTER = 1.5, 0.8
GB = 10**9


def test_links_are_not_blamed_on_the_devices() -> None:
    found = adjustment([Observation(seconds=0.030, device_seconds=0.010, link_seconds=0.010)] * 5)
    assert found is not None and found.factor == pytest.approx(2.0)
    assert (found.error_before, found.error_after) == pytest.approx((1 / 3, 0.0))


def test_a_few_requests_prove_nothing() -> None:
    assert adjustment([Observation(0.03, 0.01, 0.01)] * 4) is None


def test_requests_that_overlap_were_decoded_together() -> None:
    assert together([(0.0, 10.0), (5.0, 15.0), (100.0, 101.0)]) == pytest.approx([1.5, 1.5, 1.0])


@pytest.fixture
def deployment(db: None) -> Deployment:
    model = LanguageModel.objects.create(
        name="tiny", architecture="llama", fingerprint="f" * 64, size_bytes=1, shape=shape().to_dict()
    )
    entries = {entry["name"]: entry for entry in paper_cluster()["devices"]}
    devices: list[Device] = [profiled_device(entries[name], model) for name in ("Dev.1", "Dev.2")]
    cluster = cluster_of(model, devices, WORKLOAD, POLICY)
    plan = find_plan(Problem.from_dict(cluster), SearchSettings(compare=False)).to_dict()
    made = Deployment.objects.create(
        model=model, name="tiny", plan=plan, cluster=cluster, context_tokens=1024
    )
    for index, replica in enumerate(plan["replicas"]):
        Replica.objects.create(
            deployment=made, index=index, role=replica["role"], slots=replica["slots"], api_key="k"
        )
    return made


def serve(deployment: Deployment, requests: int) -> None:
    """One request after another, decoding slower and prompting faster than the profiles say."""
    found = servers(Problem.from_dict(deployment.cluster), Plan.from_dict(deployment.plan))
    decoding = deployment.replicas.exclude(role="prefill")[0]
    prompting = deployment.replicas.exclude(role="decode")[0]
    step = SLOWER * found[decoding.index].step_seconds[1]
    prompt = FASTER * float(found[prompting.index].prompt_seconds(np.array([100.0]))[0])
    for number in range(requests):
        RequestSample.objects.create(
            request_id=str(number),
            deployment=deployment,
            received_at=timezone.now() - timedelta(seconds=60 * (number + 1)),
            outcome=RequestSample.Outcomes.OK,
            status=200,
            prefill_replica=prompting,
            decode_replica=decoding,
            prompt_tokens=100,
            output_tokens=11,
            prefilled_tokens=100,
            prefill_seconds=prompt,
            first_token_seconds=prompt,
            total_seconds=prompt + 10 * step,
        )


def test_profiles_follow_what_was_measured_and_the_error_is_gone(
    deployment: Deployment, admin_client: Client
) -> None:
    serve(deployment, 6)
    before = {one.device.name: one.tables for one in Profile.objects.current()}
    page = admin_client.get(f"/deployments/{deployment.pk}/recalibrate/").content.decode()
    assert "Make new profiles" in page
    admin_client.post(f"/deployments/{deployment.pk}/recalibrate/make/")
    new = Profile.objects.current().filter(version=2)
    assert new.exists() and Profile.objects.filter(version=1).count() == len(before)
    for one in new:
        source = one.made_under["recalibrated"]
        assert source["from_version"] == 1 and source["deployment"] == str(deployment)
        for phase in source["phases"]:
            assert phase["error_after"] < 0.001 < phase["error_before"]
            old = before[one.device.name][phase["phase"]]["gpu_block_seconds"]
            scaled = one.tables[phase["phase"]]["gpu_block_seconds"]
            assert scaled == pytest.approx([value * phase["factor"] for value in old], rel=0.001)
    shown = admin_client.get(f"/profiles/{new[0].pk}/").content.decode()
    assert "Recalibrated from version 1" in shown and "scaled from version 1 by requests" in shown
    assert "off the curve" not in shown and "Time it again" not in shown
    assert ">Recalibrated<" in admin_client.get("/profiles/").content.decode()
    with pytest.raises(CannotRecalibrate, match="nothing was changed"):
        recalibration.recalibrate(deployment, None)


def test_without_requests_the_page_says_what_is_missing(deployment: Deployment, admin_client: Client) -> None:
    serve(deployment, 3)
    page = admin_client.get(f"/deployments/{deployment.pk}/recalibrate/").content.decode()
    assert "3 requests answered" in page and "Make new profiles" not in page


def hold(deployment: Deployment, beyond_bytes: int, marker: str = "e2llm-1") -> Profile:
    """A worker of the first replica holds that much beyond what its plan counted; the profile of its device."""
    replica = deployment.replicas.get(index=0)
    name = deployment.plan["replicas"][0]["stages"][-1]["device"]
    profile = Profile.objects.current().get(device__name=name)
    planned = planned_memory(deployment).bytes_on(0, name)
    buffers = {"model_bytes": 0, "kv_bytes": planned, "compute_bytes": beyond_bytes}
    ManagedProcess.objects.create(
        replica=replica,
        device=profile.device,
        kind=ManagedProcess.Kinds.WORKER,
        marker=marker,
        measured={"buffers": {"RPC0": buffers}},
    )
    return profile


def planned_memory(deployment: Deployment) -> PlannedMemory:
    shape, context = deployment.model.shape, deployment.context_tokens
    return PlannedMemory.of(shape, deployment.plan, deployment.cluster, context)


def test_a_process_that_ended_does_not_count_beside_its_next_start(deployment: Deployment) -> None:
    hold(deployment, GB)
    ManagedProcess.objects.update(state=ManagedProcess.States.EXITED)
    made = hold(deployment, 2 * GB, "e2llm-2")
    (taken,) = recalibration.compare_memory(deployment)
    assert taken.predicted_bytes == planned_memory(deployment).bytes_on(0, made.device.name)
    assert taken.overhead_bytes == 2 * GB


def test_memory_beyond_the_prediction_is_kept_free_by_the_next_plan(
    deployment: Deployment, admin_client: Client
) -> None:
    made = hold(deployment, GB)
    page = admin_client.get(f"/deployments/{deployment.pk}/recalibrate/").content.decode()
    assert "To be kept free" in page and "1 GB" in page and "Make new profiles" in page
    admin_client.post(f"/deployments/{deployment.pk}/recalibrate/make/")
    new = Profile.objects.current().get(device=made.device)
    assert new.version == 2 and new.tables == made.tables
    assert new.made_under["memory"]["deployment"] == str(deployment)
    assert new.memory_overhead_bytes == GB
    assert f"{deployment} took" in admin_client.get(f"/profiles/{new.pk}/").content.decode()
    devices = list(Device.objects.filter(profiles__superseded=False))
    again = {one["name"]: one for one in cluster_of(deployment.model, devices, WORKLOAD, POLICY)["devices"]}
    before = {one["name"]: one for one in deployment.cluster["devices"]}
    name = made.device.name
    assert before[name]["gpu_usable_bytes"] - again[name]["gpu_usable_bytes"] == GB
    with pytest.raises(CannotRecalibrate):
        recalibration.recalibrate(deployment, None)


def test_a_device_that_took_less_gets_no_more_for_it(deployment: Deployment, admin_client: Client) -> None:
    hold(deployment, -(10**6))
    page = admin_client.get(f"/deployments/{deployment.pk}/recalibrate/").content.decode()
    assert "To be kept free" in page and "Make new profiles" not in page


def test_a_mapped_file_counts_as_far_as_the_stage_has_weights() -> None:
    mapped = {"CPU": {"model_bytes": 90, "kv_bytes": 5, "compute_bytes": 2}}
    assert held_bytes(mapped, most_weights=30) == 37


def test_a_viewer_makes_no_profile(deployment: Deployment, viewer_client: Client) -> None:
    assert viewer_client.post(f"/deployments/{deployment.pk}/recalibrate/make/").status_code == 403


def test_devices_of_one_kind_may_have_different_profiles_by_now() -> None:
    document = paper_cluster()
    kinds = [entry["kind"] for entry in document["devices"]]
    plan = find_plan(Problem.from_dict(document), SearchSettings("ga", generations=3, compare=False))
    alike = next(entry for entry in document["devices"] if kinds.count(entry["kind"]) > 1)
    tables = {phase: alike[phase] for phase in ("decode", "prefill")}
    profile = Profile(tables=tables, model=LanguageModel(shape=shape().to_dict()))
    deployment = Deployment(cluster=document, plan=plan.to_dict())
    found = recalibration.predictions(deployment, {alike["name"]: profile}, 600.0, 2.0)
    assert len(found) == len(plan.replicas)

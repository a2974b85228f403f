"""The pages of what runs, without any host behind them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone

from accounts.models import User
from inventory.core.model_fit import Setting, memory_of
from inventory.core.quantities import bytes_text
from inventory.models import Device, LanguageModel
from serving.models import Conversation, Deployment, ManagedProcess, Replica, RequestSample, TrafficSample
from serving.runner import reconcile, states
from serving.services import traffic
from tests.planner_app.conftest import shape

MIB = 2**20


def stage(device: str, master: bool = True) -> dict[str, Any]:
    return {
        "device": device,
        "master": master,
        "gpu_blocks": 30,
        "cpu_blocks": 0,
        "seconds": 0.02,
        "gpu_bytes": 200 * MIB,
        "gpu_limit_bytes": 300 * MIB,
        "ram_bytes": 0,
    }


def planned(role: str, device: str) -> dict[str, Any]:
    return {
        "role": role,
        "slots": 2,
        "micro_batch": 1,
        "stages": [stage(device)],
        "bottleneck_seconds": 0.02,
        "pass_seconds": 0.02,
        "tpot_seconds": 0.05,
        "requests_per_second": 1.0,
        "prefill_tokens_per_second": 200.0,
        "decode_tokens_per_second": 20.0,
    }


@pytest.fixture
def deployment(db: None) -> Deployment:
    model = LanguageModel.objects.create(
        name="tiny", architecture="llama", fingerprint="f" * 64, size_bytes=1, shape=shape().to_dict()
    )
    made = Deployment.objects.create(
        model=model,
        name="tiny",
        plan={"mode": "disaggregated", "replicas": [planned("prefill", "box-1"), planned("decode", "box-2")]},
        cluster={
            "devices": [],
            "links": {"default": {"bytes_per_second": 1e8, "latency_seconds": 1e-3}},
            "policy": {"topology": "star"},
        },
        context_tokens=1024,
        state=Deployment.States.RUNNING,
    )
    for index, role in enumerate(("prefill", "decode")):
        Replica.objects.create(
            deployment=made, index=index, role=role, slots=2, state="ready", api_key="k" * 20
        )
    return made


@pytest.fixture
def request_sample(deployment: Deployment) -> RequestSample:
    prefill, decode = deployment.replicas.all()
    return RequestSample.objects.create(
        request_id="req-1",
        deployment=deployment,
        received_at=timezone.now(),
        outcome="ok",
        status=200,
        prefill_replica=prefill,
        decode_replica=decode,
        handover="hit",
        handover_bytes=10 * MIB,
        prompt_tokens=100,
        output_tokens=21,
        queued_seconds=1.5,
        prefilled_tokens=80,
        prefill_seconds=0.4,
        handover_seconds=0.2,
        first_token_seconds=2.2,
        total_seconds=3.2,
    )


@pytest.fixture
def traffic_samples(deployment: Deployment) -> None:
    replica = deployment.replicas.get(role="decode")
    load = {
        "replica": replica.pk,
        "label": "D2 (box-2)",
        "role": "decode",
        "waiting": 3,
        "running": 1,
        "slots": 2,
    }
    now = timezone.now()
    TrafficSample.objects.bulk_create(
        TrafficSample(
            at=now - timedelta(seconds=second),
            gateway="one",
            waiting=3,
            running=1,
            slots=2,
            output_tokens=20,
            replicas=[load],
        )
        for second in range(30)
    )


@pytest.mark.parametrize(
    "path", ["/deployments/", "/traffic/", "/playground/", "/launches/new/", "/traffic/?range=7d"]
)
def test_empty_page_names_the_next_step(admin_client: Client, path: str) -> None:
    answer = admin_client.get(path)
    assert answer.status_code == 200
    assert b'class="empty"' in answer.content


def test_deployment_page_shows_measured_beside_predicted(
    admin_client: Client, deployment: Deployment, request_sample: RequestSample, traffic_samples: None
) -> None:
    text = admin_client.get(f"/deployments/{deployment.pk}/").content.decode()
    assert "20 tokens/s" in text
    assert (
        "Prompt tokens per s: measured <strong>200 tokens/s</strong>, planned 200 tokens/s: as predicted"
        in text
    )
    assert "1 of 2" in text
    assert "Stop it" in text


def test_a_process_shows_the_memory_it_holds_beside_what_was_planned(
    admin_client: Client, deployment: Deployment
) -> None:
    device = Device.objects.create(name="box-2")
    planned = memory_of(shape(), Setting(1024, slots=2, full_cache=True)).total_bytes
    buffers = {"CPU": {"model_bytes": 0, "kv_bytes": round(0.95 * planned), "compute_bytes": 0}}
    ManagedProcess.objects.create(
        replica=deployment.replicas.get(role="decode"),
        device=device,
        kind="master",
        marker="e2llm-000000000001",
        measured={"buffers": buffers},
    )
    text = admin_client.get(f"/deployments/{deployment.pk}/").content.decode()
    assert f"{bytes_text(0.95 * planned)} held, {bytes_text(planned)} planned (5 % less)" in text


def test_requests_that_say_nothing_about_the_speed_are_not_called_missing(
    admin_client: Client, deployment: Deployment, request_sample: RequestSample
) -> None:
    assert (
        "the prompts of the last hour"
        not in admin_client.get(f"/deployments/{deployment.pk}/").content.decode()
    )
    RequestSample.objects.update(prefilled_tokens=4, output_tokens=1)
    text = admin_client.get(f"/deployments/{deployment.pk}/").content.decode()
    assert "the prompts of the last hour were too short to tell" in text
    assert "the answers of the last hour were too short to tell" in text
    RequestSample.objects.all().delete()
    assert "none in the last hour" in admin_client.get(f"/deployments/{deployment.pk}/").content.decode()


def test_slots_in_use_are_a_number_or_said_to_be_unknown(
    admin_client: Client, deployment: Deployment, traffic_samples: None
) -> None:
    page = f"/deployments/{deployment.pk}/live/"
    deployment.replicas.filter(role="prefill").update(state="stopped")
    text = admin_client.get(page).content.decode()
    assert "0 of 2" in text
    assert "1 of 2" in text
    TrafficSample.objects.update(at=timezone.now() - timedelta(minutes=1))
    text = admin_client.get(page).content.decode()
    assert "– of 2" in text
    assert "1 of 2" not in text


def test_viewer_sees_the_deployment_but_no_button_that_changes_it(
    viewer_client: Client, deployment: Deployment
) -> None:
    text = viewer_client.get(f"/deployments/{deployment.pk}/").content.decode()
    assert "tiny" in text
    assert "Stop it" not in text
    assert viewer_client.post(f"/deployments/{deployment.pk}/stop/").status_code == 403
    replica = deployment.replicas.get(role="decode")
    assert viewer_client.post(f"/replicas/{replica.pk}/restart/").status_code == 403
    assert viewer_client.post(f"/replicas/{replica.pk}/drain/").status_code == 403


def test_traffic_page_draws_the_queue_of_each_replica(
    admin_client: Client, request_sample: RequestSample, traffic_samples: None
) -> None:
    found = admin_client.get("/traffic/charts/?range=5m").json()
    queue = found["figures"]["queue"]["data"]
    assert [series["name"] for series in queue] == ["All", "D2 (box-2)"]
    assert set(queue[0]["y"]) == {3.0}
    hits = next(tile for tile in found["tiles"] if tile["tile_id"] == "tile-hits")
    assert hits["value"] == "100 %"


@pytest.mark.parametrize("span", ["1h", "24h", "7d"])
def test_the_queue_of_each_replica_is_drawn_over_every_range(
    admin_client: Client, request_sample: RequestSample, traffic_samples: None, span: str
) -> None:
    RequestSample.objects.update(handover="none", cached_tokens=20)
    found = admin_client.get(f"/traffic/charts/?range={span}").json()
    own = next(series for series in found["figures"]["queue"]["data"] if series["name"] == "D2 (box-2)")
    assert set(own["y"]) == {3.0}
    reuse = next(tile for tile in found["tiles"] if tile["tile_id"] == "tile-reuse")
    assert (reuse["value"], reuse["hint"]) == ("20 %", "of 100 tokens")


def test_the_queue_and_the_first_token_have_one_name_each(
    admin_client: Client, request_sample: RequestSample, traffic_samples: None
) -> None:
    text = admin_client.get("/traffic/").content.decode()
    assert "Waiting time" not in text
    assert '<h2 id="waits-title">Time to the first token</h2>' in text
    tile = next(
        one for one in admin_client.get("/traffic/charts/").json()["tiles"] if "first" in one["tile_id"]
    )
    assert (tile["label"], tile["value"]) == ("Time to the first token", "2.2 s")
    assert '<td data-label="Time in the queue" class="num">' in text
    assert '<td data-label="Time to the first token" class="num">' in text


def test_gap_in_the_samples_is_a_gap_in_the_line(admin_client: Client, traffic_samples: None) -> None:
    oldest = TrafficSample.objects.last()
    assert oldest is not None
    oldest.pk, oldest.at = None, oldest.at - timedelta(seconds=60)
    oldest.save()
    queue = admin_client.get("/traffic/charts/?range=5m").json()["figures"]["queue"]["data"][0]
    assert None in queue["y"]


def test_request_page_shows_where_the_time_went(admin_client: Client, request_sample: RequestSample) -> None:
    text = admin_client.get("/traffic/requests/req-1/").content.decode()
    for label in (
        "In the queue",
        "Prefill",
        "Hand-over",
        "Tokens after the first",
        "every slot of its role was taken",
    ):
        assert label in text


def test_request_table_filters(admin_client: Client, request_sample: RequestSample) -> None:
    assert b"req-1" in admin_client.get("/traffic/?outcome=ok&words=req").content
    assert b"req-1" not in admin_client.get("/traffic/?outcome=failed").content


def test_workload_is_read_from_the_traffic(request_sample: RequestSample) -> None:
    assert traffic.workload_of_last_hour() is None
    for number in range(5):
        request_sample.pk, request_sample.request_id = None, f"more-{number}"
        request_sample.received_at += timedelta(seconds=2)
        request_sample.save()
    assert traffic.workload_of_last_hour() == {
        "input_tokens": 100,
        "output_tokens": 21,
        "arrival_seconds": 2.0,
    }


def test_playground_refuses_what_cannot_be_asked(admin_client: Client, admin: User) -> None:
    answer = admin_client.post("/playground/ask/", b'{"messages": []}', content_type="application/json")
    assert answer.status_code == 400
    body = b'{"model": "tiny", "temperature": 9, "messages": [{"role": "user", "content": "Hi"}]}'
    answer = admin_client.post("/playground/ask/", body, content_type="application/json")
    assert "between 0 and 2" in answer.json()["error"]["message"]


def test_chats_are_kept_for_their_owner_alone_and_encrypted(
    admin_client: Client, viewer_client: Client, deployment: Deployment
) -> None:
    messages = [{"role": "user", "content": "my secret question"}]
    body = {"id": None, "messages": messages}
    kept = admin_client.post("/playground/keep/", body, content_type="application/json").json()
    assert kept["title"] == "my secret question"
    assert "my secret question" in admin_client.get(f"/playground/?chat={kept['id']}").content.decode()
    assert "my secret question" not in viewer_client.get(f"/playground/?chat={kept['id']}").content.decode()
    viewer_client.post(f"/playground/{kept['id']}/forget/")
    again = {"id": kept["id"], "messages": [*messages, {"role": "assistant", "content": "an answer"}]}
    assert (
        admin_client.post("/playground/keep/", again, content_type="application/json").json()["id"]
        == kept["id"]
    )
    with connection.cursor() as cursor:
        cursor.execute("SELECT messages FROM serving_conversation")
        assert "secret" not in cursor.fetchone()[0]
    admin_client.post(f"/playground/{kept['id']}/forget/")
    assert not Conversation.objects.exists()


def test_log_shows_only_lines_with_the_words(admin_client: Client, deployment: Deployment) -> None:
    replica = deployment.replicas.get(role="decode")
    process = ManagedProcess.objects.create(
        replica=replica,
        kind="master",
        marker="e2llm-000000000000",
        state="exited",
        ended_at=timezone.now(),
        exit_reason="load: 30 layers\nslot 0 released\nslot 1 released",
    )
    text = admin_client.get(f"/processes/{process.pk}/log/?words=SLOT+1").content.decode()
    assert "slot 1 released" in text
    assert "slot 0" not in text
    assert b"No line holds" in admin_client.get(f"/processes/{process.pk}/log/?words=nothing").content


def test_deployment_that_failed_is_not_offered_to_programs(
    admin_client: Client, deployment: Deployment
) -> None:
    assert "Ask it from a program" in admin_client.get(f"/deployments/{deployment.pk}/").text
    deployment.wanted, deployment.state = Deployment.Wanted.STOPPED, Deployment.States.FAILED
    deployment.save()
    assert "Ask it from a program" not in admin_client.get(f"/deployments/{deployment.pk}/").text


def test_a_replica_that_hung_keeps_the_reason_after_its_restart(
    admin_client: Client, deployment: Deployment
) -> None:
    replica = deployment.replicas.get(role="decode")
    box = Device.objects.create(name="box-2", connection="local", state="online")
    common = {"replica": replica, "device": box, "kind": "master"}
    hung = ManagedProcess.objects.create(**common, marker="a", state="ready")
    reconcile.watch(replica, "It made no token within 20 s.")
    hung.refresh_from_db()
    states.note_removed(hung)
    ManagedProcess.objects.create(**common, marker="b", state="ready")
    Replica.objects.filter(pk=replica.pk).update(restarts=1, state="ready", state_reason="")
    text = admin_client.get(f"/deployments/{deployment.pk}/live/").text
    assert "because llama-server on box-2 hung: it made no token within 20 s: it hangs" in text
    assert f"/processes/{hung.pk}/log/" in text


def test_a_process_that_ended_by_itself_stays_readable_after_the_restart(
    admin_client: Client, deployment: Deployment
) -> None:
    replica = deployment.replicas.get(role="decode")
    Replica.objects.filter(pk=replica.pk).update(restarts=1)
    box = Device.objects.create(name="box-2", connection="local", state="online")
    common = {"replica": replica, "device": box, "kind": "worker"}
    ended = ManagedProcess.objects.create(
        **common, marker="a", state="exited", exit_reason="it broke.\n\nlast words", ended_at=timezone.now()
    )
    ManagedProcess.objects.create(**common, marker="b", state="ready")
    text = admin_client.get(f"/deployments/{deployment.pk}/live/").text
    assert "Restarted by itself 1 time, the last time because RPC worker on box-2 ended: it broke" in text
    assert f"/processes/{ended.pk}/log/" in text
    assert "last words" in admin_client.get(f"/processes/{ended.pk}/log/").text

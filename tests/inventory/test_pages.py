"""The inventory's pages: what they show, who may use them, and what bad input gets."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from accounts.models import AuditEntry
from inventory.core.model_fit import Setting, memory_of
from inventory.core.model_shape import ModelShape
from inventory.core.quantities import bytes_text
from inventory.models import Device, LanguageModel, Link, ModelFile, Profile
from jobs.models import Job
from serving.models import Deployment, Launch
from tests.inventory.conftest import GB, HARDWARE

PAGES = [
    "/devices/",
    "/devices/add/",
    "/devices/add/several/",
    "/links/",
    "/models/",
    "/profiles/",
    "/settings/identities/",
]


@pytest.mark.parametrize("path", PAGES)
def test_every_page_is_there_before_anything_else_is(path: str, admin_client: Client) -> None:
    assert admin_client.get(path).status_code == 200


def test_every_page_shows_a_full_inventory(
    admin_client: Client, devices: list[Device], profile: Profile
) -> None:
    ModelFile.objects.create(
        model=profile.model, device=devices[0], path="/m/tiny.gguf", size_bytes=1, seen_at=timezone.now()
    )
    for path in [
        *PAGES,
        f"/devices/{devices[0].pk}/",
        f"/models/{profile.model_id}/",
        f"/profiles/{profile.pk}/",
    ]:
        answer = admin_client.get(path)
        assert answer.status_code == 200, path
    page = admin_client.get(f"/devices/{devices[0].pk}/").content.decode()
    assert "Ryzen 7 5800H" in page and "/m/tiny.gguf" in page and "One block" in page


def test_a_device_shows_what_runs_on_it(
    admin_client: Client, devices: list[Device], deployment: Deployment
) -> None:
    assert f"/deployments/{deployment.pk}/" in admin_client.get("/devices/").content.decode()
    page = admin_client.get(f"/devices/{devices[0].pk}/").content.decode()
    assert "pid 4711" in page
    assert "box-1 serves tiny #1 now. Stop that first" in page and "Remove box-1</button>" not in page
    answer = admin_client.post(f"/devices/{devices[0].pk}/remove/", follow=True)
    assert "Stop that first, then remove the device" in answer.content.decode()
    assert Device.objects.filter(pk=devices[0].pk).exists()


def test_an_old_answer_is_not_shown_as_online(admin_client: Client, devices: list[Device]) -> None:
    Device.objects.filter(pk=devices[0].pk).update(last_seen_at=timezone.now() - timedelta(minutes=10))
    page = admin_client.get("/devices/").content.decode()
    assert page.count("Not asked lately") == 1 and page.count(">Online<") == 2


def test_the_matrix_names_the_link_that_stands_out(admin_client: Client, devices: list[Device]) -> None:
    for source in devices:
        for target in devices:
            if source != target:
                slow = {source.name, target.name} == {"box-1", "box-3"}
                Link.objects.create(
                    source=source,
                    target=target,
                    bytes_per_second=11.8e6 if slow else 117e6,
                    latency_seconds=0.0004,
                    spread=0.03,
                    method="iperf3 between the hosts" if slow else "TCP between the hosts",
                    measured_at=timezone.now(),
                )
    page = admin_client.get("/links/").content.decode()
    assert "probably a 100 Mb port" in page
    assert page.count("is-odd") == 2 and page.count("spread 3 %<br>") == 6
    assert "4 directions by our own program over TCP, 2 directions by iperf3." in page


def test_the_fit_table_says_how_many_blocks_each_device_holds(
    admin_client: Client, devices: list[Device], model: LanguageModel
) -> None:
    assert "4 of 4 blocks in RAM" in admin_client.get(f"/models/{model.pk}/").content.decode()


def test_a_model_says_what_its_server_takes_for_a_context_and_slots(
    admin_client: Client, model: LanguageModel
) -> None:
    page = admin_client.get(f"/models/{model.pk}/?context=2048&slots=4")
    setting = Setting(2048, 4, full_cache=True)
    predicted = memory_of(ModelShape.from_dict(model.shape), setting)
    text = page.content.decode()
    assert page.context["memory"] == predicted
    assert all(bytes_text(size) in text for size in (predicted.kv_bytes, predicted.compute_bytes))
    assert "4 requests of" in text
    assert sum(row["cache_bytes"] for row in page.context["blocks"]) == predicted.kv_bytes
    assert admin_client.get(f"/models/{model.pk}/?context=x&slots=-1").status_code == 200


def test_viewers_look_and_change_nothing(viewer_client: Client, devices: list[Device]) -> None:
    device = devices[0]
    assert viewer_client.get(f"/devices/{device.pk}/").status_code == 200
    assert viewer_client.get("/devices/add/").status_code == 403
    for action in ("probe", "settings", "memory", "maintenance", "remove"):
        assert viewer_client.post(f"/devices/{device.pk}/{action}/").status_code == 403, action
    for path in ("/links/measure/", "/models/scan/", "/profiles/start/"):
        assert viewer_client.post(path).status_code == 403, path
    assert Device.objects.count() == 3
    assert not Job.objects.exists()


def test_usable_memory_is_overridden_with_a_reason(admin_client: Client, devices: list[Device]) -> None:
    path = f"/devices/{devices[0].pk}/memory/"
    assert admin_client.post(path, {"main_gb": 2}).status_code == 422
    nothing = admin_client.post(path, {"main_gb": 0, "reason": "broken"})
    assert nothing.status_code == 422 and "set it to maintenance" in nothing.content.decode()
    admin_client.post(path, {"main_gb": 2, "reason": "a desktop session runs there"})
    device = Device.objects.get(pk=devices[0].pk)
    assert device.gpu_usable_bytes == 2 * GB
    noted = AuditEntry.objects.get(action="device.memory_overridden").detail
    assert noted == {"before": "14 GB", "after": "2 GB", "reason": "a desktop session runs there"}
    admin_client.post(path, {"reset": "yes"})
    assert Device.objects.get(pk=device.pk).memory_override_reason == ""


def test_the_memory_form_speaks_of_the_memory_that_the_device_has(
    admin_client: Client, devices: list[Device]
) -> None:
    page = admin_client.get(f"/devices/{devices[0].pk}/").content.decode()
    assert "RAM (GB)" in page and 'value="14.0"' in page and "RAM beside the GPU" not in page
    gpu = {
        "name": "CUDA0",
        "description": "RTX 4090",
        "total_bytes": 24 * GB,
        "free_bytes": 24 * GB,
        "source": "x",
    }
    Device.objects.update(hardware=HARDWARE | {"gpus": [gpu]})
    page = admin_client.get(f"/devices/{devices[0].pk}/").content.decode()
    assert "Memory of the GPU (GB)" in page and "RAM beside the GPU (GB)" in page


def test_one_machine_at_two_addresses_is_said_on_its_page(
    admin_client: Client, devices: list[Device]
) -> None:
    Device.objects.filter(name="box-3").update(hardware=HARDWARE | {"boot_id": "another"})
    page = admin_client.get(f"/devices/{devices[0].pk}/").content.decode()
    assert "This is already box-2: the same boot id and host key" in page
    assert "This is already" not in admin_client.get(f"/devices/{devices[2].pk}/").content.decode()


def test_a_noisy_profile_is_not_called_current(admin_client: Client, profile: Profile) -> None:
    assert ">Current<" in admin_client.get("/profiles/").content.decode()
    Profile.objects.update(residual=1.59)
    page = admin_client.get("/profiles/").content.decode()
    assert ">Current<" not in page and "noisy: 159 % off the fit" in page
    assert "Noisy: 159 % off the fit" in admin_client.get(f"/profiles/{profile.pk}/").content.decode()


def test_removal_names_what_goes_with_it(
    admin_client: Client, devices: list[Device], profile: Profile
) -> None:
    for path in ("/m/a.gguf", "/m/b.gguf"):
        ModelFile.objects.create(
            model=profile.model, device=devices[0], path=path, size_bytes=1, seen_at=timezone.now()
        )
    launch = Launch.objects.create(
        job=Job.objects.create(kind="test", label="test"), model=profile.model, workload={}, policy={}
    )
    launch.devices.add(devices[0])
    page = admin_client.get(f"/devices/{devices[0].pk}/").content.decode()
    assert "relationship" not in page
    assert "1 profile" in page and "the entries of 2 model files, which stay on the machine" in page
    assert "On the machine itself nothing is deleted" in page
    admin_client.post(f"/devices/{devices[0].pk}/remove/")
    assert not Device.objects.filter(pk=devices[0].pk).exists()
    assert AuditEntry.objects.filter(action="device.removed").exists()


def test_old_measurements_show_their_age(admin_client: Client, devices: list[Device]) -> None:
    Link.objects.create(
        source=devices[0],
        target=devices[1],
        bytes_per_second=1e8,
        latency_seconds=0.001,
        method="TCP",
        measured_at=timezone.now() - timedelta(days=3),
    )
    assert "Oldest measurement" in admin_client.get("/links/").content.decode()

"""Measuring on devices that serve now."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from inventory.models import Device, ModelFile
from jobs.models import Job
from serving.models import Deployment


def measures(client: Client, path: str, **data: Any) -> str:
    return client.post(path, data, follow=True).content.decode()


@pytest.mark.usefixtures("valkey_url")
@pytest.mark.django_db(transaction=True)
def test_links_of_a_device_that_serves_are_measured_only_when_that_is_wanted(
    admin_client: Client, devices: list[Device], deployment: Deployment
) -> None:
    assert "Measure anyway" in admin_client.get("/links/").content.decode()
    assert f"box-1 serves {deployment} now." in measures(admin_client, "/links/measure/")
    assert not Job.objects.exists()
    measures(admin_client, "/links/measure/", only_idle="yes")
    first = Job.objects.get()
    assert first.params["devices"] == [devices[1].pk, devices[2].pk]
    first.delete()
    measures(admin_client, "/links/measure/", anyway="yes")
    assert len(Job.objects.get().params["devices"]) == 3


@pytest.mark.usefixtures("valkey_url")
@pytest.mark.django_db(transaction=True)
def test_a_device_that_serves_is_profiled_only_when_that_is_wanted(
    admin_client: Client, devices: list[Device], deployment: Deployment
) -> None:
    ModelFile.objects.create(
        model=deployment.model, device=devices[0], path="/m/a.gguf", size_bytes=1, seen_at=timezone.now()
    )
    typed = {"model": deployment.model_id, "devices": [devices[0].pk], "thoroughness": "quick"}
    refused = admin_client.post("/profiles/start/", typed)
    assert refused.status_code == 422 and f"box-1 serves {deployment} now." in refused.content.decode()
    assert not Job.objects.exists()
    admin_client.post("/profiles/start/", typed | {"devices": [devices[1].pk]})
    Job.objects.get().delete()
    admin_client.post("/profiles/start/", typed | {"anyway": "on"})
    assert Job.objects.get().params["devices"] == [devices[0].pk]

"""What is forgotten when, what a dry run says, and that nothing people wrote is kept unless that is switched on."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone

from accounts.models import AuditEntry
from accounts.services import audit
from jobs.models import Job, JobLine
from planner.models import PlanRun
from serving.models import Deployment, RequestRollUp, RequestSample, RequestText, Retention, TrafficSample
from tests.serving.test_pages import deployment, request_sample
from upkeep.models import Alert
from upkeep.services import retention

__all__ = ["deployment", "request_sample"]

pytestmark = pytest.mark.django_db
FORM = {"request_days": "90", "traffic_days": "7", "job_days": "90", "prompt_days": "1"}


def old_and_new(deployment: Deployment) -> None:
    """Of everything one that is a year old and one of now."""
    now = timezone.now()
    for age in (timedelta(days=365), timedelta()):
        at = now - age
        sample = RequestSample.objects.create(
            request_id=f"r{age.days}",
            deployment=deployment,
            received_at=at,
            outcome="ok",
            status=200,
            total_seconds=1,
        )
        text = RequestText.objects.create(sample=sample, prompt="asked")
        RequestText.objects.filter(pk=text.pk).update(kept_at=at)
        TrafficSample.objects.create(at=at, gateway="one", waiting=0, running=0, slots=2, output_tokens=0)
        RequestRollUp.objects.create(at=at, tally={})
        job = Job.objects.create(kind="x", label="job", state="succeeded", ended_at=at)
        JobLine.objects.create(job=job, seq=1, at=at, text="line")
        planned = Job.objects.create(kind="plan", label="plan", state="succeeded", ended_at=at)
        PlanRun.objects.create(job=planned, name="plan", cluster={})
        Alert.objects.create(
            kind="disk_low",
            subject="disk",
            title="Full",
            path="/",
            began_at=at,
            last_seen_at=at,
            resolved_at=at,
        )


def test_what_is_old_goes_and_what_is_new_stays(deployment: Deployment) -> None:
    Retention.objects.create(keeps_prompts=True)
    old_and_new(deployment)
    audit(None, "device.added")
    AuditEntry.objects.update(at=timezone.now() - timedelta(days=3650))
    retention.forget()
    for model in (RequestSample, RequestText, TrafficSample, RequestRollUp, JobLine, Alert):
        assert model.objects.count() == 1, model
    assert Job.objects.filter(kind="x").count() == 1
    assert PlanRun.objects.count() == 2
    assert Deployment.objects.count() == 1
    assert AuditEntry.objects.filter(action="device.added").exists()


def test_a_job_under_way_and_a_silent_launch_are_never_old() -> None:
    long_ago = timezone.now() - timedelta(days=365)
    job = Job.objects.create(kind="x", label="job", state="running")
    Job.objects.filter(pk=job.pk).update(created_at=long_ago, started_at=long_ago)
    retention.forget()
    assert Job.objects.filter(pk=job.pk).exists()


def test_more_than_one_bite_is_deleted() -> None:
    at = timezone.now() - timedelta(days=365)
    TrafficSample.objects.bulk_create(
        TrafficSample(at=at, gateway="one", waiting=0, running=0, slots=2, output_tokens=0)
        for _ in range(retention.BITE + 5)
    )
    assert retention.forget() == retention.BITE + 5
    assert not TrafficSample.objects.exists()


def test_a_dry_run_shows_what_would_go_and_deletes_nothing(
    admin_client: Client, deployment: Deployment
) -> None:
    old_and_new(deployment)
    text = admin_client.post("/settings/retention/", FORM | {"request_days": "366"}).content.decode()
    assert '<th scope="row">Timelines of requests</th><td>366 days</td><td class="num">0</td>' in text
    text = admin_client.post("/settings/retention/", FORM | {"request_days": "1"}).content.decode()
    assert '<th scope="row">Timelines of requests</th><td>1 day</td><td class="num">1</td>' in text
    assert RequestSample.objects.count() == 2
    assert not Retention.objects.exists()


def test_saving_is_written_down_with_before_and_after(admin_client: Client) -> None:
    admin_client.post("/settings/retention/", FORM | {"request_days": "30", "save": "1"})
    assert Retention.current().request_days == 30
    detail = AuditEntry.objects.get(action="retention.changed").detail
    assert (detail["before"]["request_days"], detail["after"]["request_days"]) == (90, 30)


def test_nothing_that_was_asked_is_kept_at_first_and_switching_it_off_deletes_it(
    admin_client: Client, request_sample: RequestSample
) -> None:
    assert not Retention.current().keeps_prompts
    admin_client.post("/settings/retention/", FORM | {"keeps_prompts": "on", "save": "1"})
    assert Retention.current().keeps_prompts
    RequestText.objects.create(sample=request_sample, prompt="asked")
    with connection.cursor() as cursor:
        cursor.execute("SELECT prompt FROM serving_requesttext")
        assert "asked" not in cursor.fetchone()[0]
    admin_client.post("/settings/retention/", FORM | {"save": "1"})
    assert not RequestText.objects.exists()


@pytest.mark.parametrize("days", ["0", "-1", "99999999999", "x", ""])
def test_a_time_that_means_nothing_is_refused(admin_client: Client, days: str) -> None:
    answer = admin_client.post("/settings/retention/", FORM | {"request_days": days, "save": "1"})
    assert answer.status_code == 200
    assert b"field-error" in answer.content
    assert not Retention.objects.exists()


def test_only_an_admin_decides(viewer_client: Client) -> None:
    assert viewer_client.get("/settings/retention/").status_code == 403
    assert viewer_client.get("/settings/backups/").status_code == 403

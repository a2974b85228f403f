"""Row 34: clocks that differ by a day or jump under way are named and judge nothing."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from django.test import Client
from django.utils import timezone

from inventory import runner
from inventory.models import Device, SshIdentity
from jobs import services
from jobs.models import Job, State
from tests.inventory.conftest import MakeProgress
from tests.lab.sshd_host import MakeHost
from tests.reliability.conftest import device_on

pytestmark = pytest.mark.django_db(transaction=True)
DAY = timedelta(days=1)


@pytest.mark.parametrize("days", [-1, 1])
def test_host_with_another_day_is_warned_about_and_stays_online(
    days: int, make_host: MakeHost, identity: SshIdentity, make_progress: MakeProgress, tmp_path: Path
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    date = programs / "date"
    date.write_text(f"#!/bin/sh\necho $(($(/bin/date +%s) + {days * 86400}))\n")
    date.chmod(0o755)
    device = device_on(make_host(path=f"{programs}:/usr/bin:/bin"), identity)
    progress = make_progress()
    runner.probe_device(device, progress)
    progress.close(State.SUCCEEDED)
    said = [line.text for line in progress.job.lines.all()]
    assert any("its clock is" in text for text in said)
    device.refresh_from_db()
    assert device.hardware["clock_skew_seconds"] == pytest.approx(days * 86400, abs=60)
    runner.heartbeat()
    device.refresh_from_db()
    assert device.state == Device.States.ONLINE


def test_job_whose_worker_died_before_the_clock_was_set_back_is_found(db: None) -> None:
    job = Job.objects.create(
        kind="tests.nothing", label="Long", state=State.RUNNING, lease="gone", attempts=1
    )
    Job.objects.filter(pk=job.pk).update(heartbeat_at=timezone.now() + DAY)
    services.reap()
    job.refresh_from_db()
    assert job.state == State.PENDING


def test_job_that_waits_since_a_moment_that_is_now_in_the_future_is_sent_again(db: None) -> None:
    job = Job.objects.create(kind="tests.nothing", label="Long")
    Job.objects.filter(pk=job.pk).update(created_at=timezone.now() + DAY, sent_at=timezone.now() + DAY)
    assert Job.objects.filter(~services.within("sent_at", services.RESEND_SECONDS), pk=job.pk).exists()
    services.reap()
    job.refresh_from_db()
    assert job.sent_at is not None


def test_device_last_seen_in_the_future_is_lost_like_any_other(db: None) -> None:
    device = Device.objects.create(
        name="box",
        host="127.0.0.1",
        port=9,
        state=Device.States.ONLINE,
        probed_at=timezone.now(),
        last_seen_at=timezone.now() + DAY,
    )
    runner.heartbeat()
    device.refresh_from_db()
    assert device.state == Device.States.LOST


def test_no_duration_is_ever_negative(db: None, admin_client: Client) -> None:
    job = Job.objects.create(kind="tests.nothing", label="Long", state=State.SUCCEEDED)
    job.started_at, job.ended_at = timezone.now(), timezone.now() - DAY
    job.save()
    assert job.seconds() == 0
    assert admin_client.get(f"/jobs/{job.pk}/").status_code == 200

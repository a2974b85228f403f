"""A job that a person has cancelled says so at once, and foretells nothing while it ends."""

from __future__ import annotations

import re
import threading
import time

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from jobs import runner, services
from jobs.models import State
from jobs.progress import Progress
from tests.jobs.test_runner import new_job

pytestmark = pytest.mark.django_db(transaction=True)


def test_pages_say_that_it_is_being_cancelled_and_offer_no_second_cancel(admin_client: Client) -> None:
    job = new_job(
        state=State.RUNNING,
        heartbeat_at=timezone.now(),
        fraction=0.99,
        remaining_seconds=75.0,
        message="Loading the model",
    )
    page = reverse("jobs:detail", args=[job.pk])
    assert "99 %" in admin_client.get(page).text
    answer = admin_client.post(reverse("jobs:cancel", args=[job.pk]), follow=True)
    text = answer.content.decode().partition("<template>")[0]
    assert "Cancelling…" in text and "99 %" not in text and " left</span>" not in text
    assert re.search(r"data-job-cancel.*?<button[^>]* disabled>", text, re.DOTALL)
    assert "Cancelling…" in admin_client.get(reverse("jobs:index")).text
    shown = services.snapshot(job.pk)["job"]
    assert (shown["shown_state"], shown["fraction"], shown["remaining_seconds"]) == ("cancelling", None, None)


def test_a_worker_tells_its_pages_of_the_cancel_while_it_ends() -> None:
    job, told = new_job(), []
    started, noticed = threading.Event(), threading.Event()

    def work(progress: Progress) -> None:
        progress.report("Loading the model", 0.5, 60.0)
        started.set()
        while not progress.job.cancel_requested:
            time.sleep(0.02)
        told.append(progress.job.to_dict())
        noticed.set()
        progress.check()

    thread = threading.Thread(target=runner.execute, args=(job.pk, work))
    thread.start()
    assert started.wait(10)
    services.cancel(job)
    thread.join(20)
    assert noticed.is_set() and told[0]["shown_state"] == "cancelling" and told[0]["fraction"] is None
    job.refresh_from_db()
    assert job.shown_state == State.CANCELLED

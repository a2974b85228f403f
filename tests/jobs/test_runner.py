"""One job under its lease: progress, cancel, failure, and a second worker."""

import re
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.conf import settings
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from accounts.models import User
from jobs import runner, services
from jobs.core.errors import JobFailed
from jobs.models import Job, JobStep, State
from jobs.progress import Progress
from tests.conftest import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def new_job(**fields: object) -> Job:
    return Job.objects.create(kind="tests.nothing", label="Measure the links", **fields)


def test_work_that_ends_is_done_with_its_steps_and_lines() -> None:
    job = new_job()

    def work(progress: Progress) -> None:
        progress.step("a", "First")
        progress.start_step("a")
        progress.log("half way")
        progress.report("working", 0.5, 3.0)
        progress.end_step("a", "12 ms")

    runner.execute(job.pk, work)
    job.refresh_from_db()
    assert (job.state, job.fraction, job.remaining_seconds) == (State.SUCCEEDED, 1.0, None)
    assert [(step.state, step.detail) for step in job.steps.all()] == [(JobStep.States.DONE, "12 ms")]
    assert [line.text for line in job.lines.all()] == ["half way"]


def test_a_failure_is_recorded_in_its_own_words_and_raised(caplog: pytest.LogCaptureFixture) -> None:
    job = new_job()

    def work(progress: Progress) -> None:
        progress.step("a", "First")
        progress.start_step("a")
        raise JobFailed("box-2 has 3 GB free and 4 GB are needed; free 1 GB.")

    with pytest.raises(JobFailed):
        runner.execute(job.pk, work)
    job.refresh_from_db()
    assert (job.state, job.error) == (State.FAILED, "box-2 has 3 GB free and 4 GB are needed; free 1 GB.")
    assert job.steps.get().state == JobStep.States.FAILED
    assert [record.getMessage() for record in caplog.records if record.name == "jobs.runner"] == [
        f"job {job.pk} “Measure the links” failed: box-2 has 3 GB free and 4 GB are needed; free 1 GB."
    ]


def test_a_programming_error_is_called_internal() -> None:
    job = new_job()
    with pytest.raises(KeyError):
        runner.execute(job.pk, lambda progress: dict[str, None]()["missing"])
    job.refresh_from_db()
    assert job.error.startswith("Internal error (KeyError")


def test_a_second_call_does_not_run_the_work_again() -> None:
    job = new_job()
    calls: list[int] = []
    for _ in range(2):
        runner.execute(job.pk, lambda progress: calls.append(1))
    assert calls == [1]


def test_cancel_stops_running_work() -> None:
    job = new_job()
    started = threading.Event()

    def work(progress: Progress) -> None:
        started.set()
        for _ in range(1000):
            progress.check()
            time.sleep(0.02)

    thread = threading.Thread(target=runner.execute, args=(job.pk, work))
    thread.start()
    assert started.wait(10)
    services.cancel(job)
    thread.join(10)
    job.refresh_from_db()
    assert job.state == State.CANCELLED


def test_cancel_ends_a_waiting_job_at_once() -> None:
    job = new_job()
    services.cancel(job)
    runner.execute(job.pk, lambda progress: pytest.fail("must not run"))
    job.refresh_from_db()
    assert job.state == State.CANCELLED


def test_cancel_ends_a_silent_job_at_once_with_its_checklist() -> None:
    job = silent_job()
    JobStep.objects.create(job=job, key="a", position=0, label="First", state=JobStep.States.RUNNING)
    before = job.seq
    services.cancel(job)
    job.refresh_from_db()
    assert (job.state, job.lease) == (State.CANCELLED, "")
    assert job.ended_at is not None and job.seq > before
    assert (job.steps.get().state, job.steps.get().detail) == (JobStep.States.SKIPPED, "cancelled")


def test_worker_that_comes_back_after_the_cancel_has_lost_its_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.progress.HEARTBEAT_SECONDS", 3600.0)
    job = new_job()

    def work(progress: Progress) -> None:
        wait_until(lambda: Job.objects.get(pk=job.pk).seq > 1, "its first sign of life")
        Job.objects.filter(pk=job.pk).update(heartbeat_at=timezone.now() - timedelta(minutes=1))
        services.cancel(job)
        progress.report("late")
        wait_until(lambda: progress.check(), "the worker is stopped")

    runner.execute(job.pk, work)
    job.refresh_from_db()
    assert (job.state, job.message) == (State.CANCELLED, "")


def test_job_whose_worker_died_after_the_cancel_waits_for_no_lease() -> None:
    job = new_job(
        state=State.RUNNING,
        lease="gone",
        cancel_requested=True,
        heartbeat_at=timezone.now() - timedelta(seconds=8),
    )
    services.reap()
    job.refresh_from_db()
    assert job.state == State.CANCELLED


def test_a_worker_that_lost_its_lease_leaves_the_row_alone() -> None:
    job = new_job()

    def work(progress: Progress) -> None:
        Job.objects.filter(pk=job.pk).update(lease="somebody else", message="mine now")
        for _ in range(1000):
            progress.check()
            time.sleep(0.02)

    runner.execute(job.pk, work)
    job.refresh_from_db()
    assert (job.state, job.lease, job.message) == (State.RUNNING, "somebody else", "mine now")


def silent_job(**fields: object) -> Job:
    return new_job(
        state=State.RUNNING,
        lease="gone",
        heartbeat_at=timezone.now() - timedelta(seconds=services.LEASE_SECONDS + 1),
        **fields,
    )


def test_a_job_whose_worker_went_silent_starts_again() -> None:
    job = silent_job(attempts=1)
    services.reap()
    job.refresh_from_db()
    assert job.state == State.PENDING
    runner.execute(job.pk, lambda progress: None)
    job.refresh_from_db()
    assert (job.state, job.attempts) == (State.SUCCEEDED, 2)


def test_a_job_that_killed_three_workers_is_not_tried_again() -> None:
    job = silent_job(attempts=services.MAX_ATTEMPTS)
    services.reap()
    job.refresh_from_db()
    assert job.state == State.INTERRUPTED and "3 times" in job.error


def test_a_job_with_a_living_worker_is_left_alone() -> None:
    job = new_job(state=State.RUNNING, lease="alive", heartbeat_at=timezone.now())
    services.reap()
    job.refresh_from_db()
    assert job.state == State.RUNNING


def test_the_same_work_on_the_same_thing_is_refused_and_named() -> None:
    first = services.start("tests.nothing", {}, None, label="Probe box-1", subject="device:1")
    with pytest.raises(services.AlreadyRunning, match="Probe box-1") as refusal:
        services.start("tests.nothing", {}, None, label="Probe box-1", subject="device:1")
    assert refusal.value.job == first


def test_each_change_has_a_higher_sequence_number_than_the_one_before() -> None:
    job = new_job()

    def work(progress: Progress) -> None:
        for number in range(5):
            progress.log(f"line {number}")

    runner.execute(job.pk, work)
    snapshot = services.snapshot(job.pk)
    sequence = [line["seq"] for line in snapshot["lines"]]
    assert sequence == sorted(set(sequence)) and snapshot["seq"] > sequence[-1]


def test_work_that_says_nothing_still_gives_signs_of_life_to_open_pages() -> None:
    job = new_job()

    def work(progress: Progress) -> None:
        before = services.snapshot(job.pk)["seq"]
        wait_until(lambda: services.snapshot(job.pk)["seq"] > before + 1, "two beats are counted")

    runner.execute(job.pk, work)
    job.refresh_from_db()
    assert job.state == State.SUCCEEDED


def test_a_worker_that_beats_no_more_is_said_to_be_silent() -> None:
    alive = new_job(state=State.RUNNING, heartbeat_at=timezone.now())
    assert services.snapshot(alive.pk)["silent_seconds"] is None
    assert services.snapshot(silent_job().pk)["silent_seconds"] >= services.LEASE_SECONDS
    assert (
        new_job(state=State.FAILED, heartbeat_at=alive.created_at - timedelta(hours=1)).silent_seconds is None
    )


def test_the_page_of_a_silent_job_says_so_and_foretells_no_end(client: Client) -> None:
    client.force_login(User.objects.create(username="ada"), backend=settings.AUTHENTICATION_BACKENDS[-1])
    job = silent_job(remaining_seconds=2.2)
    text = client.get(reverse("jobs:detail", args=[job.pk])).content.decode()
    assert re.search(r"data-job-silent>.*No sign of life for <data[^>]*>[\d.]+ s", text)
    assert re.search(r"data-job-remaining hidden>", text)


def test_a_job_that_ended_before_its_work_was_done_shows_no_percent_and_where_it_ended(
    client: Client,
) -> None:
    client.force_login(User.objects.create(username="ada"), backend=settings.AUTHENTICATION_BACKENDS[-1])
    running = new_job(state=State.RUNNING, heartbeat_at=timezone.now(), fraction=0.4, message="Round 2 of 5")
    shown = services.snapshot(running.pk)["job"]
    assert (shown["fraction"], shown["message"]) == (0.4, "Round 2 of 5")
    for state in (State.FAILED, State.CANCELLED, State.INTERRUPTED):
        Job.objects.filter(pk=running.pk).update(state=state)
        shown = services.snapshot(running.pk)["job"]
        assert (shown["fraction"], shown["message"]) == (None, "Ended at: Round 2 of 5")
        text = client.get(reverse("jobs:detail", args=[running.pk])).content.decode()
        assert "Ended at: Round 2 of 5" in text and "40 %" not in text and "data-job-bar hidden" in text


def reports_of(job: Job, work: Callable[[Progress], None]) -> None:
    runner.execute(job.pk, work)
    job.refresh_from_db()
    assert job.state == State.SUCCEEDED, job.error


def test_a_part_counts_for_its_share_and_foretells_no_end_of_the_whole() -> None:
    seen: list[tuple[float | None, bool]] = []

    def work(progress: Progress) -> None:
        def report(fraction: float | None, remaining_seconds: float | None) -> None:
            progress.report("at it", fraction, remaining_seconds)
            seen.append((progress.job.fraction, progress.job.remaining_seconds is None))

        with progress.span(0.0, 0.5):
            report(0.5, 1.0)
            with progress.span(0.5, 1.0):
                report(None, 1.0)
                report(1.0, 1.0)
        with progress.span(0.5, 1.0):
            report(0.5, 60.0)
            report(0.1, 60.0)

    reports_of(new_job(), work)
    assert seen == [(0.25, True), (0.25, True), (0.5, True), (0.75, False), (0.75, False)]


def test_the_time_left_never_grows_while_nothing_moves() -> None:
    left: list[float | None] = []

    def work(progress: Progress) -> None:
        for fraction, remaining_seconds in ((0.2, 100.0), (0.2, 300.0), (0.3, 300.0), (0.3, 0.0)):
            progress.report("searching", fraction, remaining_seconds)
            left.append(progress.job.remaining_seconds)

    reports_of(new_job(), work)
    first, still, moved, over = left
    assert first is not None and still is not None and moved is not None
    assert still <= first <= 100.0 < moved
    assert over is None

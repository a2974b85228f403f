"""Backups in the data folder: by hand, by the clock, downloaded, deleted."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.http import FileResponse
from django.test import Client
from django.utils import timezone

from accounts import seal
from accounts.models import AuditEntry
from jobs.core.errors import JobFailed
from jobs.models import Job, State
from upkeep.management.commands.backup import read_passphrase
from upkeep.models import BackupSchedule
from upkeep.runner import copies

pytestmark = pytest.mark.django_db
PASSPHRASE = "correct horse battery"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "backups"
    monkeypatch.setattr(copies, "folder", lambda: place)
    return place


def content(answer: Any) -> bytes:
    assert isinstance(answer, FileResponse)
    found: Iterator[bytes] = answer.streaming_content  # type: ignore[assignment]
    return b"".join(found)


def test_the_schedule_makes_a_copy_when_it_is_due_and_keeps_the_newest(folder: Path) -> None:
    BackupSchedule.objects.create(every_hours=24, kept=2)
    now = timezone.now().replace(microsecond=0)
    (folder).mkdir()
    (folder / "somebody-elses.tar.gz").write_bytes(b"")
    for hours in (0, 1, 24, 25, 48, 72):
        copies.by_the_clock(now + timedelta(hours=hours))
    assert [copy.made_at for copy in copies.copies()] == [now + timedelta(hours=hours) for hours in (72, 48)]
    assert (folder / "somebody-elses.tar.gz").exists()
    assert {path.stat().st_mode & 0o777 for path in folder.glob("scheduled-*")} == {0o600}


def test_no_schedule_makes_none() -> None:
    BackupSchedule.objects.create(every_hours=0)
    copies.by_the_clock(timezone.now())
    assert copies.copies() == []


def test_a_copy_that_does_not_fit_is_refused_and_tried_again_after_an_hour(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    schedule = BackupSchedule.objects.create(every_hours=1)
    monkeypatch.setattr(copies, "SPARE_BYTES", 10**18)
    now = timezone.now()
    with pytest.raises(JobFailed, match="a backup needs"):
        copies.by_the_clock(now)
    schedule.refresh_from_db()
    assert "a backup needs" in schedule.error
    monkeypatch.setattr(copies, "SPARE_BYTES", 0)
    copies.by_the_clock(now + timedelta(minutes=30))
    assert copies.copies() == []
    copies.by_the_clock(now + timedelta(minutes=61))
    assert len(copies.copies()) == 1
    schedule.refresh_from_db()
    assert schedule.error == ""


def test_one_made_by_hand_is_a_job_and_can_be_downloaded(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = admin_client.post("/settings/backups/start/", {"with_history": "on"})
    job = Job.objects.get(kind="upkeep.back_up")
    assert answer.headers["Location"] == f"/jobs/{job.pk}/"
    copies.write("by-hand", timezone.now(), job.params["with_history"], lambda fraction, text: None)
    name = copies.copies()[0].name
    assert name in admin_client.get("/settings/backups/").content.decode()
    plain = content(admin_client.post(f"/settings/backups/{name}/download/"))
    with tarfile.open(fileobj=io.BytesIO(plain)) as archive:
        assert "manifest.json" in archive.getnames()
        assert "serving.RequestSample.jsonl" in archive.getnames()
    assert AuditEntry.objects.filter(action="backup.downloaded", target=name).exists()


def test_a_sealed_download_holds_the_keys_and_opens_with_its_passphrase(admin_client: Client) -> None:
    copies.write("by-hand", timezone.now(), False, lambda fraction, text: None)
    name = copies.copies()[0].name
    refused = admin_client.post(f"/settings/backups/{name}/sealed/", {"passphrase": "short"})
    assert refused.status_code == 400
    assert "12 characters" in refused.content.decode()
    sealed = content(admin_client.post(f"/settings/backups/{name}/sealed/", {"passphrase": PASSPHRASE}))
    opened = io.BytesIO()
    seal.unseal(PASSPHRASE, io.BytesIO(sealed), opened)
    opened.seek(0)
    with tarfile.open(fileobj=opened) as archive:
        assert {"backup.tar.gz", "vault.keys", "secret.key"} <= set(archive.getnames())


@pytest.mark.parametrize("deed", ["download", "sealed", "delete"])
@pytest.mark.parametrize(
    "name", ["..%2Fsecret.key", "by-hand-20260101T000000Z.tar.gz", "secret.key", "by-hand-x.tar.gz"]
)
def test_only_backups_can_be_had(admin_client: Client, folder: Path, deed: str, name: str) -> None:
    folder.mkdir()
    (folder.parent / "secret.key").write_text("key")
    (folder / "secret.key").write_text("key")
    answer = admin_client.post(f"/settings/backups/{name}/{deed}/", {"passphrase": PASSPHRASE})
    assert answer.status_code == 404
    assert (folder.parent / "secret.key").exists()


def test_a_backup_is_deleted_by_an_admin_alone(admin_client: Client, viewer_client: Client) -> None:
    copies.write("scheduled", timezone.now(), False, lambda fraction, text: None)
    name = copies.copies()[0].name
    assert viewer_client.post(f"/settings/backups/{name}/delete/").status_code == 403
    assert viewer_client.post(f"/settings/backups/{name}/download/").status_code == 403
    assert len(copies.copies()) == 1
    admin_client.post(f"/settings/backups/{name}/delete/")
    assert copies.copies() == []


def test_two_clicks_make_one(admin_client: Client) -> None:
    for _ in range(2):
        admin_client.post("/settings/backups/start/")
    assert Job.objects.filter(state=State.PENDING).count() == 1


@pytest.mark.parametrize(
    "wrong", [{"every_hours": "-1"}, {"every_hours": "9999"}, {"kept": "0"}, {"kept": "x"}]
)
def test_a_schedule_that_means_nothing_is_refused(admin_client: Client, wrong: dict[str, str]) -> None:
    answer = admin_client.post("/settings/backups/", {"every_hours": "24", "kept": "7"} | wrong)
    assert answer.status_code == 200
    assert b"field-error" in answer.content
    assert not BackupSchedule.objects.exists()


def test_a_file_that_is_not_there_is_named_without_the_system_s_words(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"Nothing was restored\. .*gone is not there"):
        call_command("restore", tmp_path / "gone")
    with pytest.raises(CommandError, match="passphrase file .*gone is not there"):
        read_passphrase(tmp_path / "gone")

"""A whole site copied and put back into an empty data folder, row by row the same."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from cryptography.fernet import Fernet
from django.conf import LazySettings

from tests.e2llm_web.test_postgresql import ROOT, database_url
from upkeep.runner.archive import BadArchive, Opened
from upkeep.runner.restore import keys_in_place

__all__ = ["database_url"]

PASSPHRASE = "correct horse battery staple"
FILL = """
from django.utils import timezone
from accounts import vault
from accounts.models import User
from accounts.services import audit, create_api_key, create_login_link
from inventory import remote
from inventory.models import Device, LanguageModel
from jobs.models import Job, JobLine
from planner.models import PlanRun
from serving.models import *
from upkeep.models import Alert, AlertRules, Notice
vault.create_key_file()
now = timezone.now()
create_login_link()
ada = User.objects.get()
create_api_key(ada, "notebook")
audit(ada, "device.added", "b\\u00f6x\\r\\n1", {"before": None, "after": ["x", 1.5, True]})
identity = remote.create_identity("lab")
device = Device.objects.create(name="box-1", host="10.0.0.1", identity=identity, hardware={"cores": 4})
model = LanguageModel.objects.create(
    name="tiny", architecture="llama", fingerprint="f" * 64, size_bytes=2**40, shape={})
job = Job.objects.create(kind="x", label="Plan", state="succeeded", ended_at=now)
JobLine.objects.create(job=job, seq=1, at=now, text="line \\u2028 one")
run = PlanRun.objects.create(job=job, name="plan", model=model, cluster={"a": [1, 2.5, None]})
plan = {"mode": "mixed", "replicas": [{"stages": [{"device": "box-1"}]}]}
deployment = Deployment.objects.create(
    plan_run=run, model=model, name="tiny", plan=plan, cluster={}, context_tokens=1024)
replica = Replica.objects.create(deployment=deployment, index=0, role="mixed", slots=2, api_key="key of the replica")
ManagedProcess.objects.create(replica=replica, device=device, kind="master", marker="e2llm-1", argv=["a", "b c"])
launch = Launch.objects.create(job=Job.objects.create(kind="y", label="L"), model=model, workload={}, policy={})
launch.devices.add(device)
for number in range(1200):
    RequestSample.objects.create(request_id=f"r{number}", deployment=deployment, decode_replica=replica,
        received_at=now, outcome="ok", status=200, total_seconds=0.1 * number)
RequestText.objects.create(sample_id="r7", prompt="what nobody else may read")
TrafficSample.objects.create(at=now, gateway="one", waiting=1, running=1, slots=2, output_tokens=3)
Conversation.objects.create(user=ada, title="A chat", messages="[]")
alert = Alert.objects.create(kind="disk_low", subject="disk", title="Full", path="/", began_at=now, last_seen_at=now)
Notice.objects.create(alert=alert, way="email", event="opened")
AlertRules.objects.create(webhook_url="http://x/", webhook_secret="hush")
"""


@dataclass
class Site:
    """A data folder, and what can be done to it."""

    folder: Path
    database_url: str = ""

    def manage(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        environment = {key: value for key, value in os.environ.items() if key != "DJANGO_SETTINGS_MODULE"}
        environment |= {"E2LLM_DATA": str(self.folder), "DATABASE_URL": self.database_url}
        argv = [sys.executable, "manage.py", *map(str, words)]
        return subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True)

    def done(self, *words: str | Path) -> str:
        finished = self.manage(*words)
        assert finished.returncode == 0, finished.stderr
        return finished.stdout

    def rows(self) -> dict[str, list[tuple[Any, ...]]]:
        """Every row of every table of ours, secrets opened with the key file that lies beside it."""
        key = Fernet((self.folder / "vault.keys").read_bytes().split()[0])

        def plain(value: Any) -> Any:
            is_secret = isinstance(value, str) and value.startswith("gAAAA")
            return key.decrypt(value.encode()).decode() if is_secret else value

        with sqlite3.connect(self.folder / "e2llm.sqlite3") as base:
            names = [name for (name,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            ours = [name for name in names if name.split("_")[0] in OURS]
            return {
                name: [tuple(map(plain, row)) for row in base.execute(f"SELECT * FROM {name} ORDER BY 1")]
                for name in ours
            }

    def dump(self) -> list[str]:
        """The whole database as SQL: tables and rows, also those that are not ours."""
        with sqlite3.connect(self.folder / "e2llm.sqlite3") as base:
            return list(base.iterdump())


OURS = ("accounts", "jobs", "inventory", "planner", "serving", "upkeep")


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """A site in which there is something in most tables."""
    site = Site(tmp_path_factory.mktemp("old") / "data")
    site.done("migrate", "--no-input", "--verbosity", "0")
    site.done("shell", "--verbosity", "0", "--command", FILL)
    return site


@pytest.fixture(scope="module")
def passphrase_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pass") / "passphrase"
    path.write_text(f"{PASSPHRASE}\n")
    return path


@pytest.fixture(scope="module")
def sealed(old: Site, passphrase_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("copies") / "copy.sealed"
    old.done("backup", path, "--passphrase-file", passphrase_file)
    return path


@pytest.fixture(scope="module")
def bare(old: Site, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backup that is not sealed."""
    path = tmp_path_factory.mktemp("copies") / "copy.tar.gz"
    assert "not sealed" in old.done("backup", path)
    return path


def without_new(rows: dict[str, list[tuple[Any, ...]]]) -> dict[str, list[tuple[Any, ...]]]:
    """Without what making and restoring the backup itself wrote down."""
    kept = [
        row for row in rows["accounts_auditentry"] if not any(str(one).startswith("backup.") for one in row)
    ]
    return rows | {"accounts_auditentry": kept}


def test_a_sealed_backup_brings_back_every_row_and_secret(
    old: Site, sealed: Path, passphrase_file: Path, tmp_path: Path
) -> None:
    new = Site(tmp_path / "data")
    assert "Restored" in new.done("restore", sealed, "--passphrase-file", passphrase_file)
    expected, found = without_new(old.rows()), without_new(new.rows())
    assert len([name for name, rows in expected.items() if rows]) > 20
    assert found == expected
    assert (new.folder / "secret.key").read_bytes() == (old.folder / "secret.key").read_bytes()
    assert (new.folder / "vault.keys").stat().st_mode & 0o777 == 0o600
    program = (
        "from serving.models import *; print(RequestSample.objects.create("
        "request_id='n', received_at='2026-01-01T00:00Z', outcome='ok', status=200, total_seconds=1).pk)"
    )
    assert new.done("shell", "--verbosity", "0", "--command", program).strip() == "1201"


def test_what_runs_is_refused_and_left_as_it_is(old: Site, sealed: Path, passphrase_file: Path) -> None:
    before = old.rows()
    refused = old.manage("restore", sealed, "--passphrase-file", passphrase_file)
    assert refused.returncode == 1
    assert "in use" in refused.stderr
    assert old.rows() == before


def test_a_backup_that_is_not_sealed_holds_no_key_and_no_secret_in_clear(old: Site, bare: Path) -> None:
    keys = (old.folder / "vault.keys").read_text().split() + [(old.folder / "secret.key").read_text()]
    with tarfile.open(bare) as archive:
        texts = {name: archive.extractfile(name).read().decode() for name in archive.getnames()}
    for secret in (*keys, "what nobody else may read", "key of the replica", "OPENSSH PRIVATE", "hush"):
        assert [name for name, text in texts.items() if secret in text] == [], secret


def test_without_keys_it_asks_for_the_old_key_files(old: Site, bare: Path, tmp_path: Path) -> None:
    new = Site(tmp_path / "data")
    refused = new.manage("restore", bare)
    assert "Copy vault.keys and secret.key" in refused.stderr
    assert "Traceback" not in refused.stderr
    for name in ("vault.keys", "secret.key"):
        shutil.copy2(old.folder / name, new.folder / name)
    new.done("restore", bare)
    assert without_new(new.rows()) == without_new(old.rows())


def test_a_backup_of_a_later_version_names_what_is_unknown(bare: Path, tmp_path: Path) -> None:
    def later(manifest: dict[str, Any]) -> None:
        manifest["migrations"]["serving"] = "9999_from_the_future"
        manifest["version"] = "99.0"

    changed = rewritten(bare, tmp_path / "later.tar.gz", later)
    refused = Site(tmp_path / "data").manage("restore", changed)
    assert "made by version 99.0" in refused.stderr
    assert "9999_from_the_future" in refused.stderr


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda content: content[: len(content) // 2], "damaged"),
        (lambda content: b"hello", "no backup"),
    ],
    ids=["cut", "nonsense"],
)
def test_a_damaged_file_is_refused_in_words(bare: Path, tmp_path: Path, damage: Any, words: str) -> None:
    broken = tmp_path / "broken.tar.gz"
    broken.write_bytes(damage(bare.read_bytes()))
    refused = Site(tmp_path / "data").manage("restore", broken)
    assert refused.returncode == 1
    assert words in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_sealed_backup_does_not_open_with_another_passphrase(sealed: Path, tmp_path: Path) -> None:
    (tmp_path / "wrong").write_text("incorrect horse battery\n")
    refused = Site(tmp_path / "data").manage("restore", sealed, "--passphrase-file", tmp_path / "wrong")
    assert "does not open the file" in refused.stderr


def test_a_restore_that_breaks_on_its_way_leaves_a_new_database_empty(
    bare: Path, old: Site, tmp_path: Path
) -> None:
    new = Site(tmp_path / "data")
    new.folder.mkdir()
    shutil.copy2(old.folder / "vault.keys", new.folder)
    broken = with_rows(
        bare, tmp_path / "broken.tar.gz", "serving.Replica", lambda text: text.replace("[1,", "[7,")
    )
    refused = new.manage("restore", broken)
    assert "Nothing was restored. Its rows do not fit its tables: " in refused.stderr
    assert "Traceback" not in refused.stderr
    assert [line for line in new.dump() if line.startswith(("CREATE", "INSERT"))] == []


def test_a_restore_that_breaks_on_its_way_leaves_what_was_there_whole(
    bare: Path, old: Site, tmp_path: Path
) -> None:
    new = Site(tmp_path / "data")
    new.done("migrate", "--no-input", "--verbosity", "0")
    program = "from jobs.models import Job; Job.objects.create(pk=999, kind='x', label='kept')"
    new.done("shell", "--verbosity", "0", "--command", program)
    shutil.copy2(old.folder / "vault.keys", new.folder)
    before = new.dump()

    def older_shape(manifest: dict[str, Any]) -> None:
        manifest["migrations"]["planner"] = "0001_initial"

    refused = new.manage("restore", rewritten(bare, tmp_path / "older.tar.gz", older_shape))
    assert "Nothing was restored. Its rows do not fit its tables: 'title'" in refused.stderr
    assert "'kept'" in "".join(before)
    assert new.dump() == before


def test_key_files_that_were_there_come_back_after_a_failure(settings: LazySettings, tmp_path: Path) -> None:
    settings.DATA_DIR = tmp_path
    (tmp_path / "secret.key").write_bytes(b"old")
    opened = Opened(None, None, {"vault.keys": b"new", "secret.key": b"new"})
    with pytest.raises(BadArchive), keys_in_place(opened):
        assert (tmp_path / "secret.key").read_bytes() == b"new"
        raise BadArchive
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"secret.key": b"old"}


def test_it_can_move_to_postgresql(
    old: Site, sealed: Path, bare: Path, passphrase_file: Path, tmp_path: Path, database_url: str
) -> None:
    new = Site(tmp_path / "data", database_url)
    new.folder.mkdir()
    shutil.copy2(old.folder / "vault.keys", new.folder)
    broken = with_rows(
        bare, tmp_path / "broken.tar.gz", "serving.Replica", lambda text: text.replace("[1,", "[7,")
    )
    assert "do not fit its tables" in new.manage("restore", broken).stderr
    with psycopg.connect(database_url) as base:
        assert base.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone() == (0,)

    new.done("restore", sealed, "--passphrase-file", passphrase_file)
    program = (
        "from serving.models import *; from inventory.models import SshIdentity\n"
        "new = Conversation.objects.create(user_id=1, title='x', messages='y').pk\n"
        "devices = Launch.objects.get().devices.count()\n"
        "print(RequestSample.objects.count(), RequestText.objects.get().prompt, new, devices,"
        " 'OPENSSH' in SshIdentity.objects.get().private_key)"
    )
    said = new.done("shell", "--verbosity", "0", "--command", program)
    assert said.strip() == "1200 what nobody else may read 2 1 True"


def with_rows(source: Path, target: Path, label: str, change: Callable[[str], str]) -> Path:
    """The backup with other rows in one table, and a manifest that says so."""
    with tarfile.open(source) as archive:
        content = change(archive.extractfile(f"{label}.jsonl").read().decode()).encode()

    def note(manifest: dict[str, Any]) -> None:
        manifest["digests"][label] = hashlib.sha256(content).hexdigest()

    return rewritten(source, target, note, {f"{label}.jsonl": content})


def rewritten(source: Path, target: Path, change: Any, contents: dict[str, bytes] | None = None) -> Path:
    with tarfile.open(source) as old, tarfile.open(target, "w:gz") as new:
        for member in old.getmembers():
            content = (contents or {}).get(member.name) or old.extractfile(member).read()
            if member.name == "manifest.json":
                manifest = json.loads(content)
                change(manifest)
                content = json.dumps(manifest).encode()
            member.size = len(content)
            new.addfile(member, io.BytesIO(content))
    return target

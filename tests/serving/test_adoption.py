"""A replica that runs without a row is taken back into service, or left alone with the reason."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from asgiref.sync import async_to_sync
from django.test import Client

from inventory.models import Device
from jobs.models import Job
from serving.core import adoption
from serving.core.commands import SURVIVE_SIGPIPE
from serving.models import Deployment, ManagedProcess, Replica
from serving.processes import whose
from serving.runner import reconcile
from serving.services import deployments, orphans
from tests.serving.conftest import Laboratory
from tests.serving.test_roll_out import is_alive

LEFT_OVER = "/deployments/left-over/"


@dataclass
class Lost:
    """A deployment that the database knows, and its processes, of which it knows nothing: marker -> process number."""

    deployment: Deployment
    master: str
    log: Path
    pids: dict[str, int]


@pytest.fixture
def lost(laboratory: Laboratory) -> Iterator[Lost]:
    """What a database from before the last start knows of a replica over two devices."""
    deployment = laboratory.deploy(laboratory.split())
    assert deployment.state == Deployment.States.RUNNING, deployment.state_reason
    rows = list(ManagedProcess.objects.select_related("device"))
    master = next(row for row in rows if row.kind == "master")
    found = Lost(
        deployment,
        master.marker,
        Path(master.run_folder) / "log",
        {row.marker: row.pid for row in rows if row.pid is not None},
    )
    forget(deployment)
    yield found
    known = set(ManagedProcess.objects.values_list("marker", flat=True))
    for row in rows:
        if row.marker not in known:
            assert row.device is not None
            async_to_sync(orphans.stop)(row.device, row.marker)


def forget(deployment: Deployment) -> None:
    ManagedProcess.objects.all().delete()
    deployment.replicas.update(state=Replica.States.FAILED, restarts=9, host=None, port=None)
    Deployment.objects.filter(pk=deployment.pk).update(state=Deployment.States.FAILED)


def adopt(client: Client, marker: str, **options: str) -> str:
    """What the list of deployments says afterwards."""
    client.post(f"{LEFT_OVER}adopt/", {"marker": marker, **options})
    return html.unescape(client.get("/deployments/").content.decode())


def page(client: Client) -> str:
    return html.unescape(client.get(LEFT_OVER).content.decode())


def test_lost_replica_is_adopted_as_it_runs_and_then_managed_like_any_other(
    laboratory: Laboratory, admin_client: Client, lost: Lost
) -> None:
    replica = lost.deployment.replicas.get()
    text = page(admin_client)
    assert f"It is {replica.label} of {lost.deployment} as the plan wants it." in text
    assert "An RPC worker is adopted with the llama-server that uses it." in text
    adopt(admin_client, lost.master)
    laboratory.work()
    lost.deployment.refresh_from_db()
    assert Job.objects.get(label__startswith="Adopt").error == ""
    assert lost.deployment.state == Deployment.States.RUNNING
    assert lost.deployment.replicas.get().state == Replica.States.READY
    rows = {row.marker: row for row in ManagedProcess.objects.all()}
    assert {marker: row.pid for marker, row in rows.items()} == lost.pids
    assert {row.state for row in rows.values()} == {ManagedProcess.States.READY}
    assert rows[lost.master].measured["buffers"]

    reconcile.reconcile()
    assert not Job.objects.active().exists(), "there is nothing to change"
    assert not any(marker in page(admin_client) for marker in rows), "they are managed now"
    deployments.stop(lost.deployment, None)
    laboratory.work()
    assert not any(is_alive(row) for row in rows.values())


def test_replica_of_another_dashboard_is_adopted_only_once_that_is_said_to_be_gone(
    laboratory: Laboratory, admin_client: Client, lost: Lost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whose, "installation_id", lambda: "feedfeedfeed")
    assert "The dashboard that started it is gone for good" in page(admin_client)
    assert "confirm first that that one is gone" in adopt(admin_client, lost.master)
    assert not ManagedProcess.objects.exists()
    adopt(admin_client, lost.master, is_gone="on")
    laboratory.work()
    assert lost.deployment.replicas.get().state == Replica.States.READY


def test_what_is_not_as_the_plan_wants_is_refused_with_the_first_difference(
    laboratory: Laboratory, admin_client: Client, lost: Lost
) -> None:
    """Nothing of all this ends a process or writes a row."""
    deployment, plan = lost.deployment, lost.deployment.plan
    other = {**plan, "replicas": [{**plan["replicas"][0], "slots": 3}]}
    Deployment.objects.filter(pk=deployment.pk).update(plan=other)
    assert "--parallel is 2, the plan wants 3" in adopt(admin_client, lost.master)
    Deployment.objects.filter(pk=deployment.pk).update(plan=plan)

    box = Device.objects.get(name="box-1")
    Device.objects.filter(pk=box.pk).update(llama=box.llama | {"server_path": "/bin/true"})
    assert "is not the llama.cpp that is installed there now" in adopt(admin_client, lost.master)
    Device.objects.filter(pk=box.pk).update(llama=box.llama)

    Device.objects.filter(name="box-2").update(probed_at=None)
    deployment.plan["replicas"][0]["stages"][1]["device"] = "box-3"
    Deployment.objects.filter(pk=deployment.pk).update(plan=deployment.plan)
    assert "its RPC worker on box-3 does not run" in adopt(admin_client, lost.master)

    Deployment.objects.all().delete()
    assert "No deployment has a llama-server on box-1" in adopt(admin_client, lost.master)
    assert not ManagedProcess.objects.exists()
    assert not Job.objects.active().exists()
    assert all(orphans_run(lost))


def orphans_run(lost: Lost) -> list[bool]:
    return [is_alive(ManagedProcess(pid=pid)) for pid in lost.pids.values()]


def test_replica_that_has_processes_of_its_own_needs_no_other(
    laboratory: Laboratory, admin_client: Client, lost: Lost
) -> None:
    box, replica = laboratory.devices["box-1"], lost.deployment.replicas.get()
    own = ManagedProcess.objects.create(
        replica=replica, device=box, kind="master", marker="e2llm-000000000001", state="ready"
    )
    assert "it has processes of its own" in adopt(admin_client, lost.master)
    own.delete()


def test_replica_that_cannot_prove_its_placement_is_let_go_as_it_was(
    laboratory: Laboratory, admin_client: Client, lost: Lost
) -> None:
    lost.log.write_text("")
    adopt(admin_client, lost.master)
    laboratory.work()
    job = Job.objects.get(label__startswith="Adopt")
    assert "did not place anything" in job.error
    replica = lost.deployment.replicas.get()
    assert (replica.state, replica.state_reason) == (Replica.States.FAILED, "")
    assert not ManagedProcess.objects.exists()
    assert all(orphans_run(lost))


def test_command_lines_are_compared_word_for_word() -> None:
    running = ["/opt/ggml-rpc-server", "-H", "10.0.0.2", "-p", "18400"]
    assert adoption.difference([*SURVIVE_SIGPIPE, *running], running) == ""
    assert "-p is 18400, the plan wants 18401" in adoption.difference([*running[:-1], "18401"], running)
    assert "nothing, the plan wants -t" in adoption.difference([*running, "-t"], running)
    assert "-t, the plan wants nothing" in adoption.difference(running, [*running, "-t"])
    assert adoption.own_endpoint(running) == "10.0.0.2:18400"
    assert adoption.rpc_endpoints(["--rpc", "a:1,b:2"]) == ["a:1", "b:2"]
    assert adoption.rpc_endpoints(running) == []

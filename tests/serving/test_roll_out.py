"""Plans put on three devices with real llama.cpp."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone

from inventory.models import Device
from inventory.remote import connect
from jobs import services as jobs
from jobs.models import Job, JobStep
from serving.core.commands import ProcessCommand
from serving.models import Deployment, ManagedProcess, Replica
from serving.processes import lifecycle, observe
from serving.runner import liveness, reconcile, states
from serving.services import deployments
from tests.conftest import wait_until
from tests.serving.conftest import Laboratory

KEY_OF_NOBODY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKPz1LNHVpoQYcP/qojqJZMuQ2KVUtnVB87mTbn/PjOv"


def is_alive(process: ManagedProcess) -> bool:
    try:
        status = Path(f"/proc/{process.pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def test_plan_with_a_split_and_a_single_replica_comes_up_and_goes_without_a_trace(
    laboratory: Laboratory,
) -> None:
    deployment = laboratory.deploy(laboratory.split("prefill"), laboratory.single("decode"))
    job = Job.objects.get(subject=deployment.subject)
    assert deployment.state == Deployment.States.RUNNING, job.error
    assert {replica.state for replica in deployment.replicas.all()} == {Replica.States.READY}
    assert {step.state for step in job.steps.all()} == {JobStep.States.DONE}
    processes = list(ManagedProcess.objects.all())
    assert len(processes) == 3
    assert all(is_alive(process) for process in processes)
    worker = next(process for process in processes if process.kind == ManagedProcess.Kinds.WORKER)
    assert sum(found["model_bytes"] for found in worker.measured["buffers"].values()) > 0
    assert not any(
        laboratory_key in str(process.argv)
        for process in processes
        for laboratory_key in deployment.replicas.values_list("api_key", flat=True)
    )

    stopping = deployments.stop(deployment, None)
    laboratory.work()
    deployment.refresh_from_db()
    stopping.refresh_from_db()
    assert deployment.state == Deployment.States.STOPPED
    assert stopping.message == f"{deployment} is stopped; no answer was cut off"
    assert not any(is_alive(process) for process in processes)
    assert not any(
        Path(process.run_folder).exists() or Path(process.slot_folder).exists() for process in processes
    )


def test_truncated_model_is_named_and_nothing_stays_behind(laboratory: Laboratory, tmp_path: Path) -> None:
    file = laboratory.devices["box-3"].model_files.get()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(Path(file.path).read_bytes()[:50_000_000])
    file.path, file.size_bytes = str(cut), 50_000_000
    file.save()
    deployment = laboratory.deploy(laboratory.split(), laboratory.single())
    assert deployment.state == Deployment.States.FAILED
    assert "box-3" in deployment.state_reason
    assert "the model file is cut short" in deployment.state_reason
    steps = JobStep.objects.filter(job__subject=deployment.subject)
    (guilty,) = steps.filter(state=JobStep.States.FAILED)
    assert guilty.key.startswith("1:")
    assert not steps.filter(state__in=[JobStep.States.RUNNING, JobStep.States.PENDING]).exists()
    other = {step.state for step in steps.filter(key__startswith="0:")}
    assert other <= {JobStep.States.DONE, JobStep.States.SKIPPED}, "the other replica did not fail"
    told = [(replica.state, bool(replica.state_reason)) for replica in deployment.replicas.all()]
    assert told == [(Replica.States.STOPPED, False), (Replica.States.FAILED, True)]
    assert not any(is_alive(process) for process in ManagedProcess.objects.all())
    assert not states.left_on_hosts().exists()


def test_model_is_copied_to_a_master_without_it(laboratory: Laboratory, tmp_path: Path) -> None:
    box = laboratory.devices["box-3"]
    box.model_roots = [str(tmp_path)]
    box.save()
    box.model_files.all().delete()
    deployment = laboratory.deploy(laboratory.single())
    assert deployment.state == Deployment.States.RUNNING, deployment.state_reason
    assert Path(box.model_files.get().path).parent == tmp_path


def test_running_deployment_is_adopted_by_a_new_control_plane(laboratory: Laboratory) -> None:
    deployment = laboratory.deploy(laboratory.single())
    pid = ManagedProcess.objects.get().pid
    reconcile.reconcile()
    laboratory.work()
    deployment.refresh_from_db()
    assert deployment.state == Deployment.States.RUNNING
    assert ManagedProcess.objects.get().pid == pid
    assert Job.objects.count() == 1


def test_death_of_a_worker_restarts_its_whole_replica(laboratory: Laboratory) -> None:
    deployment = laboratory.deploy(laboratory.split())
    worker = ManagedProcess.objects.get(kind=ManagedProcess.Kinds.WORKER)
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(worker), "the worker is dead")
    reconcile.reconcile()
    replica = deployment.replicas.get()
    assert replica.state == Replica.States.FAILED
    assert "box-2" in replica.state_reason
    laboratory.work()
    replica.refresh_from_db()
    assert replica.state == Replica.States.READY
    current = ManagedProcess.objects.filter(state=ManagedProcess.States.READY)
    assert {process.kind for process in current} == {"master", "worker"}
    assert worker.pk not in {process.pk for process in current}
    assert not Path(worker.run_folder).exists()


def test_frozen_worker_is_found_and_its_replica_restarted(
    laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness, "TOKEN_SECONDS", 5.0)
    deployment = laboratory.deploy(laboratory.split())
    worker = ManagedProcess.objects.get(kind=ManagedProcess.Kinds.WORKER)
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGSTOP)
    reconcile.reconcile()
    replica = deployment.replicas.get()
    assert replica.state == Replica.States.FAILED
    assert "hangs" in replica.state_reason
    laboratory.work()
    replica.refresh_from_db()
    assert replica.state == Replica.States.READY
    assert not is_alive(worker)
    drained = JobStep.objects.filter(job__params__action="restart").get(key="drain")
    assert "It failed: It made no token" in drained.detail
    assert ManagedProcess.objects.filter(kind="master", exit_reason__startswith=states.HUNG).exists()


def test_new_plan_that_does_not_fit_beside_replaces_the_old_one_first(laboratory: Laboratory) -> None:
    first = laboratory.deploy(laboratory.single())
    second = laboratory.deploy(laboratory.single())
    first.refresh_from_db()
    assert first.state == Deployment.States.STOPPED
    assert second.state == Deployment.States.RUNNING
    steps = list(Job.objects.get(subject=second.subject).steps.values_list("key", flat=True))
    assert steps[:2] == ["preflight", f"stop:{first.pk}"]


def test_roll_out_that_a_host_refuses_leaves_the_old_plan_serving(
    laboratory: Laboratory, tmp_path: Path
) -> None:
    first = laboratory.deploy(laboratory.single())
    process = ManagedProcess.objects.get()
    file = laboratory.devices["box-3"].model_files.get()
    small = tmp_path / "small.gguf"
    small.write_bytes(b"GGUF" * 251)
    file.path = str(small)
    file.save()
    second = laboratory.deploy(laboratory.single())
    first.refresh_from_db()
    assert second.state == Deployment.States.FAILED
    assert "has 1004 bytes, expected" in second.state_reason
    assert (first.state, first.wanted) == (Deployment.States.RUNNING, Deployment.Wanted.RUNNING)
    assert is_alive(process)
    restarting = deployments.restart_replica(first.replicas.get(), None)
    laboratory.work()
    restarting.refresh_from_db()
    assert restarting.state == "failed"
    assert is_alive(process), "a restart that cannot succeed is refused as well"


def test_new_plan_that_fits_beside_is_ready_before_the_old_one_stops(laboratory: Laboratory) -> None:
    laboratory.limit_bytes *= 2
    first = laboratory.deploy(laboratory.single())
    second = laboratory.deploy(laboratory.single())
    first.refresh_from_db()
    assert (first.state, second.state) == (Deployment.States.STOPPED, Deployment.States.RUNNING)
    steps = {step.key: step for step in Job.objects.get(subject=second.subject).steps.all()}
    ready, stopped = steps["0:check"].ended_at, steps[f"stop:{first.pk}"].started_at
    assert ready is not None
    assert stopped is not None
    assert ready <= stopped


def test_roll_back_deploys_the_plan_that_ran_before(laboratory: Laboratory) -> None:
    first = laboratory.deploy(laboratory.single(device="box-1"))
    second = laboratory.deploy(laboratory.single(device="box-2"))
    third = deployments.roll_back(second, None)
    laboratory.work()
    third.refresh_from_db()
    assert third.state == Deployment.States.RUNNING
    assert third.plan == first.plan
    second.refresh_from_db()
    assert second.state == Deployment.States.STOPPED


def test_stop_during_the_roll_out_leaves_nothing(laboratory: Laboratory) -> None:
    deployment = deployments.deploy(
        laboratory.plan(laboratory.split()), laboratory.cluster(), laboratory.model, None
    )
    worker = threading.Thread(target=laboratory.work)
    worker.start()
    wait_until(lambda: ManagedProcess.objects.filter(state="started").exists(), "a process was started")
    deployments.stop(deployment, None)
    worker.join()
    reconcile.reconcile()  # a roll-out that was done before it saw the cancel is stopped by the next pass
    laboratory.work()
    deployment.refresh_from_db()
    assert deployment.state == Deployment.States.STOPPED
    assert not states.left_on_hosts().exists()


def test_failed_roll_out_brings_the_replaced_plan_back(laboratory: Laboratory, tmp_path: Path) -> None:
    first = laboratory.deploy(laboratory.single())
    file = laboratory.devices["box-3"].model_files.get()
    whole, whole_bytes = file.path, file.size_bytes
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(Path(whole).read_bytes()[:50_000_000])
    file.path, file.size_bytes = str(cut), 50_000_000
    file.save()
    second = laboratory.deploy(laboratory.single())
    assert second.state == Deployment.States.FAILED
    assert "the model file is cut short" in second.state_reason
    assert deployments.brought_back(second) == [
        f"{first} was stopped for this one and is to be started again; requests for it wait."
    ]
    file.path, file.size_bytes = whole, whole_bytes
    file.save()
    reconcile.reconcile()
    laboratory.work()
    first.refresh_from_db()
    assert first.state == Deployment.States.RUNNING
    assert deployments.brought_back(second) == [
        f"{first} was stopped for this one and was started again: it runs."
    ]


def test_foreign_process_on_the_port_is_named_or_avoided(laboratory: Laboratory) -> None:
    deployment = laboratory.deploy(laboratory.single())
    port = deployment.replicas.get().port
    assert port is not None
    assert observe.FIRST_PORT <= port <= observe.LAST_PORT


def test_silent_host_is_said_to_be_silent_and_nothing_on_it_is_touched(laboratory: Laboratory) -> None:
    deployment = laboratory.deploy(laboratory.single())
    box = laboratory.devices["box-3"]
    Device.objects.filter(pk=box.pk).update(
        connection="ssh", host="127.0.0.1", port=1, username="x", host_key=KEY_OF_NOBODY
    )
    reconcile.reconcile()
    process, replica = ManagedProcess.objects.get(), deployment.replicas.get()
    assert process.state == ManagedProcess.States.UNKNOWN
    assert is_alive(process)
    assert replica.state == Replica.States.READY
    assert "box-3 does not answer" in replica.state_reason
    Device.objects.filter(pk=box.pk).update(connection="local")
    reconcile.reconcile()
    process.refresh_from_db()
    replica.refresh_from_db()
    assert (process.state, replica.state_reason) == (ManagedProcess.States.READY, "")


def test_deployment_that_is_being_changed_refuses_a_second_change(laboratory: Laboratory) -> None:
    deployment = laboratory.deploy(laboratory.single())
    replica = deployment.replicas.get()
    first = deployments.restart_replica(replica, None)
    with pytest.raises(jobs.AlreadyRunning) as refusal:
        deployments.restart_replica(replica, None)
    assert refusal.value.job == first


def test_drained_replica_stays_stopped_until_it_is_restarted(laboratory: Laboratory) -> None:
    deployment = laboratory.deploy(laboratory.single(device="box-1"), laboratory.single(device="box-3"))
    first, second = deployment.replicas.all()
    draining = deployments.drain_replica(first, None)
    laboratory.work()
    draining.refresh_from_db()
    first.refresh_from_db()
    assert draining.message == f"{first.label} is stopped; no answer was cut off"
    assert first.state == Replica.States.STOPPED
    assert not any(is_alive(process) for process in first.processes.all())
    reconcile.reconcile()
    assert not Job.objects.active().exists(), "nobody starts it again unasked"
    with pytest.raises(deployments.CannotDrain):
        deployments.drain_replica(second, None)

    deployments.restart_replica(first, None)
    laboratory.work()
    deployment.refresh_from_db()
    assert deployment.state == Deployment.States.RUNNING


def test_replica_drained_while_its_host_is_away_is_stopping_until_that_returns(
    laboratory: Laboratory,
) -> None:
    deployment = laboratory.deploy(laboratory.single(device="box-1"), laboratory.single(device="box-3"))
    replica = deployment.replicas.get(index=1)
    away = {"connection": "ssh", "host": "127.0.0.1", "port": 1, "username": "x", "host_key": KEY_OF_NOBODY}
    Device.objects.filter(name="box-3").update(**away)
    deployments.drain_replica(replica, None)
    laboratory.work()
    replica.refresh_from_db()
    assert replica.state == Replica.States.STOPPING
    assert "box-3 cannot be reached, so processes may still run there" in replica.state_reason

    Device.objects.filter(name="box-3").update(connection="local")
    Job.objects.update(ended_at=timezone.now() - timedelta(hours=1))
    reconcile.reconcile()
    laboratory.work()
    replica.refresh_from_db()
    assert replica.state == Replica.States.STOPPED
    assert not any(is_alive(process) for process in replica.processes.all())


def test_replica_is_not_called_stopped_before_its_process_has_ended(laboratory: Laboratory) -> None:
    deployment = laboratory.deploy(laboratory.single())
    process = ManagedProcess.objects.get()
    deployments.stop(deployment, None)
    work = threading.Thread(target=laboratory.work)
    work.start()
    while deployment.replicas.get().state != Replica.States.STOPPED:
        work.join(0.01)
    assert not is_alive(process)
    work.join()


def test_plan_larger_than_the_free_memory_is_refused_before_the_start(laboratory: Laboratory) -> None:
    huge = laboratory.single()
    huge["stages"][0]["gpu_bytes"] = 10**15
    deployment = laboratory.deploy(huge)
    assert deployment.state == Deployment.States.FAILED
    assert "needs 1" in deployment.state_reason
    assert "are free" in deployment.state_reason
    assert not ManagedProcess.objects.exclude(pid=None).exists()


async def start_unrecorded(device: Device, marker: str, home: Path) -> None:
    """What a control plane leaves that dies between the start and writing it down."""
    folders = str(home / "run" / marker), str(home / "slots" / marker)
    environment = {"E2LLM_MARKER": marker}
    command = ProcessCommand(
        device=str(device),
        kind="worker",
        address="127.0.0.33",
        port=1,
        marker=marker,
        argv=("sleep", "600"),
        environment=environment,
        run_folder=folders[0],
        slot_folder=folders[1],
        key_path=None,
        log_path=f"{folders[0]}/log",
    )
    async with connect(device) as connection:
        await lifecycle.start(connection, command)


def test_start_that_was_never_recorded_is_found_and_ended(laboratory: Laboratory, tmp_path: Path) -> None:
    deployment = deployments.record(
        laboratory.plan(laboratory.single()), laboratory.cluster(), laboratory.model, None, None
    )
    box, marker = laboratory.devices["box-3"], "e2llm-ab12ab12ab12"
    row = ManagedProcess.objects.create(
        replica=deployment.replicas.get(),
        device=box,
        kind="worker",
        marker=marker,
        run_folder=str(tmp_path / "run" / marker),
        slot_folder=str(tmp_path / "slots" / marker),
    )
    asyncio.run(start_unrecorded(box, marker, tmp_path))
    pid = int((tmp_path / "run" / marker / "pid").read_text())
    deployments.stop(deployment, None)
    laboratory.work()
    row.refresh_from_db()
    assert row.state == ManagedProcess.States.STOPPED
    assert not Path(f"/proc/{pid}/cmdline").exists() or not Path(f"/proc/{pid}/cmdline").read_bytes()

"""Rows 18 to 21 and 27: two clicks, a host that goes away at any step, a killed control plane, a slow link."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from django.conf import settings
from django.db import connections
from django.test import Client
from django.utils import timezone

from accounts.models import User
from jobs import services as jobs
from jobs.models import Job, JobStep, State
from planner.models import PlanRun
from serving.models import Deployment, ManagedProcess, Replica
from serving.runner import reconcile, states
from serving.services import deployments
from tests.conftest import wait_until
from tests.lab.network import Network
from tests.lab.sshd_host import SshdHost
from tests.reliability.conftest import alive, all_alive
from tests.serving.conftest import Laboratory

Hosts = dict[str, SshdHost]


@pytest.fixture
def plan_run(laboratory: Laboratory) -> PlanRun:
    return PlanRun.objects.create(
        job=Job.objects.create(kind="planner.run", label="Plan", state=State.SUCCEEDED),
        name="a plan",
        model=laboratory.model,
        cluster=laboratory.cluster(),
        plan=laboratory.plan(laboratory.single()),
    )


def test_two_admins_at_once_get_one_deployment_and_the_second_is_told_whose(
    plan_run: PlanRun, admin: User, operator: User
) -> None:
    barrier, refusals = threading.Barrier(2), []

    def click(user: User) -> None:
        barrier.wait()
        try:
            deployments.deploy_run(PlanRun.objects.get(pk=plan_run.pk), user)
        except jobs.AlreadyRunning as refusal:
            refusals.append(str(refusal))
        finally:
            connections.close_all()

    threads = [threading.Thread(target=click, args=(user,)) for user in (admin, operator)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winner = Deployment.objects.get().created_by
    assert len(refusals) == 1
    assert f"is already running, started by {winner}" in refusals[0]
    assert Job.objects.active().count() == 1


def test_five_clicks_end_on_the_page_of_the_same_deployment(plan_run: PlanRun, admin_client: Client) -> None:
    answers = [admin_client.post("/deployments/deploy/", {"plan_run": plan_run.pk}) for _ in range(5)]
    page = f"/deployments/{Deployment.objects.get().pk}/"
    assert {answer.headers["location"] for answer in answers} == {page}
    assert "is already running, started by ada" in admin_client.get("/jobs/").content.decode()
    assert Job.objects.active().count() == 1


def test_another_plan_for_devices_that_are_being_changed_is_refused(laboratory: Laboratory) -> None:
    plan, cluster = laboratory.plan(laboratory.split()), laboratory.cluster()
    deployments.deploy(plan, cluster, laboratory.model, None)
    overlapping = laboratory.plan(laboratory.single(device="box-2"))
    with pytest.raises(jobs.AlreadyRunning):
        deployments.deploy(overlapping, cluster, laboratory.model, None)
    deployments.deploy(laboratory.plan(laboratory.single(device="box-3")), cluster, laboratory.model, None)
    assert Deployment.objects.count() == 2
    Job.objects.active().update(state=State.CANCELLED)


def step_reached(key: str, state: JobStep.States | None) -> Callable[[], bool]:
    """Whether the step is in this state; None: it is on the list, however far it is."""
    steps = JobStep.objects.filter(key=key)
    return (steps if state is None else steps.filter(state=state)).exists


def key_of(laboratory: Laboratory, step: str) -> str:
    names = {"worker": ("box-2", "worker"), "master": ("box-1", "master")}
    if step == "load":
        return "0:load"
    name, kind = names[step]
    return f"0:{laboratory.devices[name].pk}:{kind}"


@pytest.mark.parametrize(
    ("step", "state", "lost", "silently"),
    [
        ("worker", None, "box-2", False),
        ("worker", "done", "box-2", False),
        ("load", "running", "box-1", False),
        ("load", "running", "box-2", True),
    ],
)
def test_host_lost_during_a_step_is_named_the_others_are_cleared_and_it_is_cleared_when_it_returns(
    step: str,
    state: JobStep.States | None,
    lost: str,
    silently: bool,
    lab_hosts: Hosts,
    laboratory: Laboratory,
    network: Network,
) -> None:
    network.shape(lab_hosts["box-2"], "40mbit")
    plan = laboratory.plan(laboratory.split())
    deployment = deployments.deploy(plan, laboratory.cluster(), laboratory.model, None)
    work = threading.Thread(target=laboratory.work)
    work.start()
    wait_until(step_reached(key_of(laboratory, step), state), f"{step} is {state}")
    (network.silence if silently else network.refuse)(lab_hosts[lost])
    work.join()
    deployment.refresh_from_db()
    assert deployment.state == Deployment.States.FAILED
    assert lost in deployment.state_reason
    reachable = ManagedProcess.objects.exclude(device__name=lost)
    assert not any(alive(process.marker) for process in reachable)

    network.heal(lab_hosts[lost])
    Job.objects.update(ended_at=timezone.now() - timedelta(hours=1))
    reconcile.reconcile()
    laboratory.work()
    assert all_alive() == {}
    assert not states.left_on_hosts().exists()


def test_load_over_a_slow_link_shows_how_far_it_is_and_is_left_alone(
    lab_hosts: Hosts, laboratory: Laboratory, network: Network
) -> None:
    network.shape(lab_hosts["box-2"], "60mbit")
    plan = laboratory.plan(laboratory.split())
    deployment = deployments.deploy(plan, laboratory.cluster(), laboratory.model, None)
    work = threading.Thread(target=laboratory.work)
    work.start()
    seen: list[float] = []
    while work.is_alive():
        fraction = Job.objects.values_list("fraction", flat=True).get(subject=deployment.subject)
        if fraction and fraction not in seen:
            seen.append(fraction)
        work.join(0.2)
    deployment.refresh_from_db()
    assert deployment.state == Deployment.States.RUNNING, deployment.state_reason
    assert len(seen) > 1
    assert seen == sorted(seen)


def test_control_plane_killed_right_after_a_start_leaves_no_unlisted_process(
    laboratory: Laboratory, worker: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    (tmp_path / "vault.keys").symlink_to(settings.DATA_DIR / "vault.keys")
    plan = laboratory.plan(laboratory.split())
    deployment = deployments.deploy(plan, laboratory.cluster(), laboratory.model, None)
    wait_until(all_alive, "a process is on a host")
    os.killpg(worker.pid, signal.SIGKILL)
    listed = set(ManagedProcess.objects.values_list("marker", flat=True))
    assert set(all_alive()) <= listed
    Job.objects.update(heartbeat_at=timezone.now() - timedelta(minutes=1))
    jobs.reap()
    laboratory.work()
    deployment.refresh_from_db()
    assert deployment.state == Deployment.States.RUNNING, deployment.state_reason
    current = ManagedProcess.objects.filter(state=ManagedProcess.States.READY)
    assert set(all_alive()) == set(current.values_list("marker", flat=True))
    assert deployment.replicas.get().state == Replica.States.READY

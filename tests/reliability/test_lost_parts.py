"""Rows 25 and 35: a model that may not be read or was spoiled, a restart that cannot succeed, a GPU that is gone."""

from __future__ import annotations

import html
import os
import signal
from datetime import timedelta
from pathlib import Path

from django.test import Client
from django.utils import timezone

from inventory import runner
from inventory.models import Profile, SshIdentity
from inventory.profiling.versions import conditions
from jobs.models import Job
from serving.core.backoff import WAITS_SECONDS
from serving.models import Deployment, ManagedProcess, Replica
from serving.runner import reconcile
from serving.services import deployments
from tests.conftest import wait_until
from tests.inventory.conftest import MakeProgress
from tests.lab.sshd_host import MakeHost
from tests.reliability.conftest import all_alive, device_on
from tests.serving.conftest import Laboratory
from tests.serving.test_roll_out import is_alive

# An administrator reads every file. Without these powers he is like any other owner of files.
BOUND_BY_PERMISSIONS = """#!/bin/sh
[ "$(id -u)" = 0 ] || exec /bin/sh "$@"
exec setpriv --bounding-set=-dac_override,-dac_read_search /bin/sh "$@"
"""


def test_model_that_may_not_be_read_is_named_with_device_and_path(
    laboratory: Laboratory, make_host: MakeHost, identity: SshIdentity, tmp_path: Path
) -> None:
    shell = tmp_path / "shell"
    shell.write_text(BOUND_BY_PERMISSIONS)
    shell.chmod(0o755)
    host = make_host(shell=str(shell), path=os.environ["PATH"])
    box = laboratory.devices["box-3"]
    there = device_on(host, identity, "there")
    for name in ("connection", "host", "port", "username", "identity", "host_key"):
        setattr(box, name, getattr(there, name))
    there.delete()
    box.save()
    model = own_copy(laboratory, tmp_path)
    model.chmod(0)
    deployment = laboratory.deploy(laboratory.single())
    assert deployment.state == Deployment.States.FAILED
    assert f"box-3: the model file {model} may not be read by our user" in deployment.state_reason
    assert all_alive() == {}

    model.chmod(0o400)
    again = deployments.deploy_again(deployment, None)
    laboratory.work()
    again.refresh_from_db()
    assert again.state == Deployment.States.RUNNING, again.state_reason
    deployments.stop(again, None)  # while its host is there
    laboratory.work()
    assert all_alive() == {}


def own_copy(laboratory: Laboratory, folder: Path) -> Path:
    """A copy of the model that a test may spoil, where box-3 looks for it."""
    file = laboratory.devices["box-3"].model_files.get()
    copy = folder / "model.gguf"
    copy.write_bytes(Path(file.path).read_bytes())
    file.path = str(copy)
    file.save()
    return copy


def test_replica_whose_model_was_spoiled_is_tried_again_a_few_times_and_then_left_to_a_person(
    laboratory: Laboratory, admin_client: Client, tmp_path: Path
) -> None:
    model = own_copy(laboratory, tmp_path)
    deployment = laboratory.deploy(laboratory.single(device="box-1"), laboratory.single())
    good, spoiled = deployment.replicas.all()
    process = spoiled.processes.get()
    expected = model.stat().st_size
    model.unlink()  # the running server keeps what it has mapped
    model.write_bytes(b"GGUF")
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(process), "the llama-server is dead")
    for _ in range(len(WAITS_SECONDS) + 3):
        reconcile.reconcile()
        laboratory.work()
        reconcile.reconcile()
        assert not Job.objects.active().exists(), "it waits before the next try"
        ManagedProcess.objects.exclude(ended_at=None).update(ended_at=timezone.now() - timedelta(hours=1))
    assert Job.objects.filter(label__startswith="Restart").count() == len(WAITS_SECONDS)
    spoiled.refresh_from_db()
    assert spoiled.state == Replica.States.FAILED
    assert f"box-3: the model file {model} has 4 bytes, expected {expected}" in spoiled.state_reason
    good.refresh_from_db()
    assert good.state == Replica.States.READY, "the other replica answers on"
    page = html.unescape(admin_client.get(f"/deployments/{deployment.pk}/live/").content.decode())
    assert "Started again 4 times in vain and no more" in page


SECONDS = {"gpu_block_seconds": [0.01], "cpu_block_seconds": [0.01], "head_seconds": [0.01]}
TABLES = {"decode": {"micro_batch": [1], **SECONDS}, "prefill": {"tokens": [64], **SECONDS}}
LLAMA_WITH_A_CARD = """#!/bin/sh
[ "$1" = --list-devices ] && [ -e '{card}' ] && {{
  echo 'Available devices:'; echo '  CUDA0: NVIDIA GeForce RTX 3060 (12045 MiB, 11811 MiB free)'; exit 0; }}
exec '{program}' "$@"
"""


def test_gpu_that_is_gone_makes_the_profile_stale_and_plans_for_it_are_refused(
    laboratory: Laboratory,
    make_host: MakeHost,
    identity: SshIdentity,
    make_progress: MakeProgress,
    admin_client: Client,
    tmp_path: Path,
) -> None:
    programs, card = tmp_path / "programs", tmp_path / "card"
    programs.mkdir()
    card.touch()
    facts = laboratory.devices["box-3"].llama
    for name, key in (("llama-server", "server_path"), ("ggml-rpc-server", "rpc_server_path")):
        (programs / name).write_text(LLAMA_WITH_A_CARD.format(card=card, program=facts[key]))
        (programs / name).chmod(0o755)
    device = device_on(make_host(path=f"{programs}:{os.environ['PATH']}"), identity, "tower")
    runner.probe_device(device, make_progress())
    assert (device.main_pool_device, device.main_pool) == ("CUDA0", "gpu")
    made = Profile.objects.create(
        device=device,
        model=laboratory.model,
        tables=TABLES,
        residual=0.0,
        made_under=conditions(device),
        measured_at=timezone.now(),
    )
    cluster = laboratory.cluster() | {"devices": [{"name": "tower", "main_pool": device.main_pool}]}

    card.unlink()
    runner.probe_device(device, make_progress())
    assert device.main_pool_device == "CPU"
    made.refresh_from_db()
    assert made.stale_reason == "since it was made: another GPU"
    assert (made.superseded, made.tables) == (False, TABLES), "it is kept"
    assert made.stale_reason in html.unescape(admin_client.get("/profiles/").content.decode())

    plan = laboratory.plan(laboratory.single(device="tower"))
    deployment = deployments.deploy(plan, cluster, laboratory.model, None)
    laboratory.work()
    deployment.refresh_from_db()
    assert deployment.state == Deployment.States.FAILED
    assert "tower had a GPU when the plan was made, and llama.cpp finds none" in deployment.state_reason
    assert not ManagedProcess.objects.exclude(pid=None).exists()

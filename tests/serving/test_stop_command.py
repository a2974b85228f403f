"""`./run manage stop_deployments`, with and without something to stop."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from inventory.models import Device
from serving.models import Deployment, ManagedProcess, Replica
from tests.serving.conftest import Laboratory


def stop_all() -> str:
    said = StringIO()
    call_command("stop_deployments", stdout=said)
    return said.getvalue()


@pytest.mark.django_db
def test_where_nothing_is_deployed_that_is_said() -> None:
    assert stop_all() == "Nothing is deployed.\n"


def test_what_is_deployed_is_stopped_without_a_worker(laboratory: Laboratory) -> None:
    deployment = laboratory.deploy(laboratory.single())
    assert deployment.state == Deployment.States.RUNNING
    assert stop_all() == f"{deployment} is stopped.\n"
    deployment.refresh_from_db()
    assert (deployment.wanted, deployment.state) == (Deployment.Wanted.STOPPED, Deployment.States.STOPPED)
    assert not ManagedProcess.objects.filter(state=ManagedProcess.States.READY).exists()


def test_a_host_that_does_not_answer_is_named_and_can_be_tried_again(laboratory: Laboratory) -> None:
    laboratory.deploy(laboratory.single())
    box = Device.objects.filter(name="box-3")
    before = box.values("connection", "host", "port", "host_key").get()
    box.update(connection=Device.Connections.SSH, host="127.0.0.1", port=1, host_key="ssh-ed25519 AAAA")
    with pytest.raises(CommandError, match="box-3 cannot be reached"):
        assert "is stopped" in stop_all()
    replica = Replica.objects.get()
    assert replica.state == Replica.States.STOPPING
    assert "processes may still run there" in replica.state_reason
    box.update(**before)
    assert "is stopped" in stop_all()
    replica.refresh_from_db()
    assert (replica.state, replica.state_reason) == (Replica.States.STOPPED, "")

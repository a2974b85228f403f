"""Row 28: a stop ends the whole group of processes, even one that ignores the request."""

from __future__ import annotations

from pathlib import Path

from serving.models import Deployment, ManagedProcess
from tests.reliability.conftest import alive
from tests.serving.conftest import Laboratory

WRAPPER = """#!/bin/sh
trap '' TERM
sleep 600 &
"{real}" "$@" &
while :; do wait; sleep 0.1; done
"""


def test_wrapper_that_ignores_the_request_is_gone_with_all_its_children(
    laboratory: Laboratory, tmp_path: Path
) -> None:
    """The roll-out notices that not the wrapper but its child owns the port, and takes down what it started."""
    device = laboratory.devices["box-3"]
    wrapper = tmp_path / "llama-server"
    wrapper.write_text(WRAPPER.format(real=device.llama["server_path"]))
    wrapper.chmod(0o755)
    device.llama = device.llama | {"server_path": str(wrapper)}
    device.save()
    deployment = laboratory.deploy(laboratory.single())
    process = ManagedProcess.objects.get()
    assert deployment.state == Deployment.States.FAILED
    assert "not to us" in deployment.state_reason
    assert alive(process.marker) == []
    assert process.state == ManagedProcess.States.STOPPED
    assert not process.run_folder

"""Profiling on real hosts: cancel, faults, what is left behind."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import threading
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import pytest

from benchmarks.loadable_models import MIXTURE
from demo.hosts import DemoHost
from inventory import library, profiling, remote, runner, services
from inventory.core.model_shape import ModelShape
from inventory.core.profile import DEEP
from inventory.models import Device, LanguageModel, Profile
from inventory.profiling.held import HOLD_PROGRAM, Bench, Launch, held, make_folder
from inventory.profiling.launches import benches, launches_for
from inventory.profiling.settings import QUICK
from jobs import services as jobs
from jobs.core.errors import JobFailed
from jobs.models import Job, State
from tests.conftest import wait_until
from tests.inventory.conftest import MakeProgress, register
from tests.inventory.test_whole_path import left_behind

pytestmark = pytest.mark.django_db(transaction=True)
SHORT = replace(QUICK, micro_batches=(1, 2), prompts=(32, 64), min_rounds=1, max_rounds=1, deep_tokens=256)


@pytest.fixture
def devices(lab: list[DemoHost], small_model: Path, make_progress: MakeProgress) -> list[Device]:
    """Two probed devices; the first holds the model."""
    place = lab[0].home / "models"
    place.mkdir()
    shutil.copy(small_model, place / "small.gguf")
    found = [register(host) for host in lab[:2]]
    for device in found:
        runner.probe_device(device, make_progress())
    library.scan(found, make_progress(), with_library=False)
    return found


def test_a_device_without_the_file_is_timed_too(
    devices: list[Device], lab: list[DemoHost], make_progress: MakeProgress
) -> None:
    model = LanguageModel.objects.get()
    made = profiling.profile(devices, model, make_progress(), grid=SHORT)
    assert [profile.device for profile in made] == devices
    assert left_behind(lab) == []
    assert made[0].tables[DEEP]["context_tokens"] == 256
    again = profiling.profile(devices[:1], model, make_progress(), grid=SHORT)
    assert again[0].version == 2
    assert Profile.objects.current().count() == 2


def test_experts_are_timed_with_real_weights_cut_on_the_host(
    devices: list[Device], lab: list[DemoHost], small_model: Path, make_progress: MakeProgress
) -> None:
    for path in (lab[0].home / "models").iterdir():
        path.unlink()
    MIXTURE.write(lab[0].home / "models" / "experts.gguf", small_model)
    library.scan(devices, make_progress(), with_library=False)
    model = LanguageModel.objects.get(architecture="qwen3moe")
    made = profiling.profile(devices[:1], model, make_progress(), grid=SHORT)[0]
    assert min(made.tables["decode"]["gpu_block_seconds"]) > 0
    with pytest.raises(JobFailed, match="does not hold the file"):
        profiling.profile(devices[1:], model, make_progress(), grid=SHORT)
    assert left_behind(lab) == []


def test_no_cache_is_deeper_than_half_of_what_the_model_was_trained_for() -> None:
    assert QUICK.within(8192) == QUICK
    assert QUICK.within(1024).deep_tokens == 512
    assert QUICK.within(256).deep_micro_batches == ()


def test_cancel_leaves_nothing_on_the_host(devices: list[Device], lab: list[DemoHost]) -> None:
    job = services.start_profile(devices, LanguageModel.objects.get(), None, thorough=True)
    worker = threading.Thread(target=runner.profile_job, args=(job.pk,))
    worker.start()
    wait_until(lambda: "Timing" in Job.objects.get(pk=job.pk).message, "the timing has begun")
    jobs.cancel(Job.objects.get(pk=job.pk))
    worker.join(60)
    assert Job.objects.get(pk=job.pk).state == State.CANCELLED
    assert left_behind(lab) == []
    assert not Profile.objects.exists()


@pytest.mark.parametrize("stage", ["with slices only", "with servers"])
def test_a_host_cleans_up_by_itself_when_the_worker_is_killed(lab: list[DemoHost], stage: str) -> None:
    device = register(lab[0])
    cache = lab[0].home / ".cache" / "e2llm"
    forever = Launch("forever", Bench("gpu", ()), 2, 1, ("tail", "-F", f"{cache}/lease"))

    async def work() -> None:
        async with remote.connect(device) as connection:
            folder = await make_folder(connection, str(lab[0].home))
            async with held(connection, folder) as start:
                await connection.write_file(f"{folder}/2.gguf", b"slice")
                if stage == "with servers":
                    await start([forever])
                await asyncio.Event().wait()

    worker = get_context("fork").Process(target=lambda: asyncio.run(work()))
    worker.start()
    sign = "pids" if stage == "with servers" else "2.gguf"
    wait_until(lambda: any(path.stat().st_size for path in cache.rglob(sign)), "the host is at work")
    worker.kill()
    worker.join()
    wait_until(lambda: left_behind(lab) == [], "the host has removed files and processes")
    wait_until(lambda: not list(cache.glob("profile-*")), "the host has removed the folder")


def test_hang_ups_while_a_host_cleans_up_do_not_stop_it(tmp_path: Path) -> None:
    folder = tmp_path / "profile-1"
    folder.mkdir()
    program = HOLD_PROGRAM.format(folder=folder, misses=9, seconds="9")
    holder = subprocess.Popen(["/bin/sh", "-c", program], stdin=subprocess.PIPE, start_new_session=True)
    assert holder.stdin is not None
    wait_until((folder / "holds").exists, "the host holds")
    for number in range(2000):
        (folder / f"slice {number}").touch()
    holder.stdin.close()
    while holder.poll() is None:
        os.killpg(holder.pid, signal.SIGHUP)
    assert not folder.exists()


def test_a_server_that_does_not_start_is_named_with_its_last_words(
    devices: list[Device], lab: list[DemoHost], make_progress: MakeProgress
) -> None:
    broken = lab[0].folder / "broken"
    broken.write_text("#!/bin/sh\necho 'CUDA error: out of memory' >&2\nexit 7\n")
    broken.chmod(0o755)
    devices[0].llama = devices[0].llama | {"server_path": str(broken)}
    with pytest.raises(JobFailed, match="with a slice of . blocks?: CUDA error: out of memory$"):
        profiling.profile(devices[:1], LanguageModel.objects.get(), make_progress(), grid=SHORT)
    assert left_behind(lab) == []


SILENT_AT_FIRST = """#!/bin/sh
mkdir "$0-tried-$(printf '%s' "$*" | cksum | tr ' ' -)" 2> /dev/null && exit 1
exec '{program}' "$@"
"""


def test_a_server_whose_log_was_lost_is_started_once_more(
    devices: list[Device], lab: list[DemoHost], make_progress: MakeProgress
) -> None:
    program = lab[0].folder / "silent-at-first"
    program.write_text(SILENT_AT_FIRST.format(program=devices[0].llama["server_path"]))
    program.chmod(0o755)
    devices[0].llama = devices[0].llama | {"server_path": str(program)}
    profiling.profile(devices[:1], LanguageModel.objects.get(), make_progress(), grid=SHORT)
    assert len(list(lab[0].folder.glob("silent-at-first-tried-*"))) > 1, "each of the servers died once"
    assert left_behind(lab) == []


def test_what_is_finished_stays_when_another_device_cannot_be_timed(
    devices: list[Device], lab: list[DemoHost], make_progress: MakeProgress
) -> None:
    devices[1].llama = {}
    with pytest.raises(JobFailed, match="No llama.cpp was found on box-2: install llama-server"):
        profiling.profile(devices, LanguageModel.objects.get(), make_progress(), grid=SHORT)
    assert [made.device for made in Profile.objects.current()] == devices[:1]
    assert left_behind(lab) == []


def test_a_file_that_changed_is_not_profiled(
    devices: list[Device], lab: list[DemoHost], make_progress: MakeProgress
) -> None:
    path = lab[0].home / "models" / "small.gguf"
    content = bytearray(path.read_bytes())
    content[-100:] = bytes(100)
    path.write_bytes(content)
    with pytest.raises(JobFailed, match="has changed since it was found"):
        profiling.profile(devices[:1], LanguageModel.objects.get(), make_progress(), grid=SHORT)


def test_another_build_makes_a_profile_stale(devices: list[Device], make_progress: MakeProgress) -> None:
    made = profiling.profile(devices[:1], LanguageModel.objects.get(), make_progress(), grid=SHORT)[0]
    assert profiling.stale_reason(devices[0], made) == ""
    devices[0].llama = devices[0].llama | {"sha256": "f" * 64}
    assert "another llama.cpp build" in profiling.stale_reason(devices[0], made)


def test_a_gpu_with_ram_beside_it_is_timed_in_both_pools() -> None:
    shape = ModelShape.from_dict({**EMPTY_SHAPE, "blocks": [DENSE_BLOCK] * 8})
    device = Device(ram_usable_bytes=10**10, hardware={"gpus": [{"name": "CUDA0"}], "cores": 8})
    assert [bench.pool for bench in benches(device, shape)] == ["gpu", "cpu"]
    experts = ModelShape.from_dict({**EMPTY_SHAPE, "blocks": [DENSE_BLOCK | {"resident_bytes": 10}] * 8})
    assert "-ot" in benches(device, experts)[1].flags
    device.ram_usable_bytes = 0
    assert [bench.pool for bench in benches(device, shape)] == ["gpu"]


def test_only_flags_that_the_build_knows_are_used() -> None:
    shape = ModelShape.from_dict({**EMPTY_SHAPE, "blocks": [DENSE_BLOCK] * 8})
    device = Device(
        hardware={"gpus": [], "cores": 4},
        llama={"server_path": "/x", "flags": ["--no-webui", "-ctxcp", "-fit"]},
    )
    argv = launches_for(device, shape, QUICK, {2: "/a", 6: "/b"}, [1, 2])[1].argv
    assert argv[:3] == ("/x", "-m", "/b")
    assert "--no-webui" in argv and "-kvu" not in argv and "--no-ui" not in argv
    assert argv[argv.index("-fit") + 1] == "off" and argv[argv.index("-t") + 1] == "3"


DENSE_BLOCK = {
    "kind": "full",
    "tensor_bytes": {},
    "size_bytes": 100,
    "resident_bytes": 0,
    "kv_bytes_per_token": 4,
    "window_tokens": None,
    "state_bytes": 0,
}
EMPTY_SHAPE = {
    "architecture": "llama",
    "name": "x",
    "quantisation": "F16",
    "embedding_length": 8,
    "output_bytes": 8,
    "embedding_bytes": 8,
    "vocabulary": 8,
    "context_train": 8,
    "has_chat_template": True,
    "shards": 1,
    "file_bytes": 8,
    "weight_bytes": 8,
    "parameters": 8,
    "experts": 0,
    "experts_used": 0,
    "is_tied": False,
    "is_mla": False,
    "feed_forward_length": 8,
    "notes": [],
}

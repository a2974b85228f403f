"""Work for a real worker that goes wrong on purpose; the worker imports it by name."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from celery import shared_task

from jobs import runner
from jobs.progress import Progress

KILLS_ITS_WORKER, RUNS_LONG = "tests.kills_its_worker", "tests.runs_long"


@shared_task(name=KILLS_ITS_WORKER)
def kills_its_worker(job_id: int) -> None:
    runner.execute(job_id, lambda progress: os.kill(os.getpid(), signal.SIGKILL))


@shared_task(name=RUNS_LONG)
def runs_long(job_id: int) -> None:
    """Notes each execution in the folder that the job names, and goes on until a file `end` is there."""

    def work(progress: Progress) -> None:
        folder = Path(progress.job.params["folder"])
        (folder / f"run-{os.getpid()}-{time.monotonic_ns()}").touch()
        while not (folder / "end").exists():
            progress.check()
            progress.log("still running")
            time.sleep(0.1)

    runner.execute(job_id, work)

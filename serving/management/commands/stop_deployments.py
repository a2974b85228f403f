"""Stop every model that is served, also while the site itself is stopped."""

import time
from contextlib import suppress
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db.models import Q, QuerySet

from jobs import services as jobs
from jobs.core.errors import JobFailed
from jobs.models import Job, State
from serving.models import Deployment
from serving.runner.operate import operate
from serving.services import deployments

LOOK_SECONDS = 0.2


class Command(BaseCommand):
    help = "Stop all deployments: running answers end first, then llama.cpp is ended on every host."

    def handle(self, *args: Any, **options: Any) -> None:
        seen: list[int] = []
        failures = []
        # A roll-out that is stopped brings back what it had replaced, which is then to be stopped, too.
        while (deployment := left().exclude(pk__in=seen).first()) is not None:
            seen.append(deployment.pk)
            if text := self.stop(deployment):
                failures.append(text)
        if not seen:
            self.stdout.write("Nothing is deployed.")
        if failures:
            raise CommandError(
                f"{' '.join(failures)} Remedy: see that the hosts answer, then stop it on its page."
            )

    def stop(self, deployment: Deployment) -> str:
        """What went wrong; empty when nothing of it runs any more."""
        job = ended(deployments.stop(deployment, None))
        if job.params["action"] != "stop":  # its roll-out, which was cancelled
            job = ended(deployments.stop(deployment, None))
        if job.state != State.SUCCEEDED:
            return f"{deployment} was not stopped: {job.error}"
        self.stdout.write(f"{deployment} is stopped.")
        return ""


def left() -> QuerySet[Deployment]:
    is_left = Q(wanted=Deployment.Wanted.RUNNING) | Q(state=Deployment.States.STOPPING)
    return Deployment.objects.filter(is_left).order_by("pk")


def ended(job: Job) -> Job:
    """The job once it is over: done here, or by a worker of the running site if that takes it first."""
    with suppress(JobFailed):  # the row says why
        operate(job.pk)
    while Job.objects.active().filter(pk=job.pk).exists():
        jobs.reap()  # its worker may have ended with the site
        time.sleep(LOOK_SECONDS)
    job.refresh_from_db()
    return job

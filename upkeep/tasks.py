"""Doors to the work of this app."""

from celery import shared_task
from django.utils import timezone

from serving.events import only_one
from upkeep.runner import copies
from upkeep.services import alerts, notices, retention

LONGEST_FORGET_SECONDS = 1800.0
LONGEST_BACKUP_SECONDS = 3600.0


@shared_task(name="upkeep.watch", ignore_result=True)
def watch() -> None:
    alerts.watch()


@shared_task(name="upkeep.deliver", ignore_result=True)
def deliver() -> None:
    notices.deliver()


@shared_task(name="upkeep.forget", ignore_result=True)
def forget() -> None:
    with only_one("forget", LONGEST_FORGET_SECONDS) as mine:
        if mine:
            retention.forget()


@shared_task(name="upkeep.back_up", ignore_result=True)
def back_up(job_id: int) -> None:
    copies.back_up(job_id)


@shared_task(name="upkeep.back_up_by_the_clock", ignore_result=True)
def back_up_by_the_clock() -> None:
    with only_one("backup", LONGEST_BACKUP_SECONDS) as mine:
        if mine:
            copies.by_the_clock(timezone.now())

"""Doors to the work of this app."""

from celery import shared_task

from serving.runner import launch as launches
from serving.runner import operate as operations
from serving.runner import reconcile as reconciler
from serving.services import launches as launch_services
from serving.services import roll_ups


@shared_task(name="serving.operate", ignore_result=True)
def operate(job_id: int) -> None:
    operations.operate(job_id)


@shared_task(name="serving.reconcile", ignore_result=True)
def reconcile() -> None:
    reconciler.reconcile_alone()


@shared_task(name="serving.launch", ignore_result=True)
def launch(job_id: int) -> None:
    launches.launch(job_id)
    launch_services.after_planning(job_id)


@shared_task(name="serving.roll_up", ignore_result=True)
def roll_up() -> None:
    roll_ups.roll_up()

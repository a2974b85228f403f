"""Doors to the work of this app."""

from celery import shared_task

from serving.runner import operate as operations
from serving.runner import reconcile as reconciler


@shared_task(name="serving.operate", ignore_result=True)
def operate(job_id: int) -> None:
    operations.operate(job_id)


@shared_task(name="serving.reconcile", ignore_result=True)
def reconcile() -> None:
    reconciler.reconcile()

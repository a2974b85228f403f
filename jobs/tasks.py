from celery import shared_task

from jobs import services


@shared_task(name="jobs.reap", ignore_result=True)
def reap() -> None:
    services.reap()

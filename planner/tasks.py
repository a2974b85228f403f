from celery import shared_task

from planner import runner


@shared_task(name="planner.execute_run", ignore_result=True)
def execute_run(job_id: int) -> None:
    runner.execute(job_id)

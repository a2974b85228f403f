from celery import shared_task

from inventory import runner, services


@shared_task(name="inventory.probe_device", ignore_result=True)
def probe_device(job_id: int) -> None:
    runner.probe_job(job_id)


@shared_task(name="inventory.measure_links", ignore_result=True)
def measure_links(job_id: int) -> None:
    runner.links_job(job_id)


@shared_task(name="inventory.scan_models", ignore_result=True)
def scan_models(job_id: int) -> None:
    runner.scan_job(job_id)


@shared_task(name="inventory.copy_model", ignore_result=True)
def copy_model(job_id: int) -> None:
    runner.copy_job(job_id)


@shared_task(name="inventory.profile_devices", ignore_result=True)
def profile_devices(job_id: int) -> None:
    runner.profile_job(job_id)


@shared_task(name="inventory.heartbeat", ignore_result=True)
def heartbeat() -> None:
    services.heartbeat()

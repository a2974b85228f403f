"""The Celery application and everything that happens by the clock."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "e2llm_web.settings")

app = Celery("e2llm_web")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()

EVERY_SECONDS = {
    "jobs.reap": 5.0,
    "inventory.heartbeat": 10.0,
    "serving.reconcile": 5.0,
    "serving.roll_up": 60.0,
    "upkeep.watch": 10.0,
    "upkeep.deliver": 10.0,
    "upkeep.forget": 600.0,
    "upkeep.back_up_by_the_clock": 600.0,
}
# A beat that finds every worker busy is dropped when the next one is due: late housekeeping must not pile up.
app.conf.beat_schedule = {
    name: {"task": name, "schedule": seconds, "options": {"expires": seconds}}
    for name, seconds in EVERY_SECONDS.items()
}
app.conf.beat_scheduler = "celery.beat:Scheduler"  # in memory: no schedule file to be damaged by a kill

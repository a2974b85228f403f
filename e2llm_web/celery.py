"""The Celery application and everything that happens by the clock."""

import os
from typing import Any

from celery import Celery
from celery.beat import Scheduler

from e2llm_web import pulse

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


class Clock(Scheduler):
    """Keeps the schedule in memory, where no kill damages it, and shows at each tick that beat lives."""

    def tick(self, *args: Any, **options: Any) -> float:
        seconds: float = super().tick(*args, **options)
        pulse.give()
        return seconds


app.conf.beat_scheduler = f"{__name__}:{Clock.__name__}"

"""What the home page shows: what needs a person, the one next step, live numbers, what is running."""

from __future__ import annotations

from typing import Any

from django.utils import timezone

from accounts.models import User
from e2llm_web.home.concerns import attention
from e2llm_web.home.next_steps import next_step, steps
from e2llm_web.home.numbers import STALE, percentile, tiles, waiting_seconds
from planner.charts import stage_rows
from serving.charts import tones
from serving.models import Deployment, Replica, TrafficSample

__all__ = ["attention", "live", "next_step", "page", "percentile", "steps", "waiting_seconds"]


def page(user: User) -> dict[str, Any]:
    """Context of the whole home page."""
    deployment = current_deployment()
    return {
        "attention": attention(deployment),
        "next_step": next_step(deployment).for_user(user),
        "steps": steps(deployment),
        "deployment": deployment,
        "deployment_tone": tones.DEPLOYMENT[Deployment.States(deployment.state)] if deployment else "",
        "rows": deployment_rows(deployment) if deployment else [],
        **live(),
    }


def live() -> dict[str, Any]:
    """Context of the part that is fetched again every few seconds."""
    now = timezone.now()
    latest = TrafficSample.objects.first()
    return {
        "tiles": tiles(latest, now) if latest and Deployment.objects.exists() else [],
        "is_stale": latest is not None and now - latest.at > STALE,
        "sampled_at": latest.at if latest else None,
    }


def current_deployment() -> Deployment | None:
    """The newest deployment that people want to be running."""
    wanted = Deployment.objects.filter(wanted=Deployment.Wanted.RUNNING, ended_at=None)
    return wanted.select_related("model").first()


def deployment_rows(deployment: Deployment) -> list[dict[str, Any]]:
    """Stage rows of its plan, each with the state of its replica."""
    rows = stage_rows(deployment.plan, deployment.cluster)
    replicas = {replica.index: replica for replica in deployment.replicas.all()}
    for index, row in enumerate(rows):
        if index in replicas:
            state = Replica.States(replicas[index].state)
            row["state"] = {"tone": tones.REPLICA[state], "label": state.label, "icon": ""}
    return rows

"""Deployments: the list, one deployment live, and what can be done to it."""

from __future__ import annotations

from typing import Any

from asgiref.sync import async_to_sync
from django.conf import settings
from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_POST

from accounts.core.asked_number import asked_number
from accounts.models import AuditEntry, User
from accounts.services import operator_required
from inventory.remote import RemoteError
from jobs import services as jobs
from jobs.models import Job
from planner.models import PlanRun
from serving.charts import deployment_rows, tones
from serving.core.placement import BadLaunch
from serving.models import Deployment, ManagedProcess, Replica
from serving.services import consequences, deployments, handover_cost, logs, pace, traffic
from serving.services.deployments import CannotDeploy, CannotDrain
from serving.services.handover_cost import CannotSwitch

PAGE_SIZE = 25
HISTORY = 12
REFUSED_HEADER = "X-E2LLM-Refused"  # the effect is none: there is nothing to confirm


def person(request: HttpRequest) -> User:
    assert isinstance(request.user, User), "every page but sign-in asks for a logged-in user"
    return request.user


@require_GET
def index(request: HttpRequest) -> HttpResponse:
    rows = (
        Deployment.objects.select_related("model", "created_by").prefetch_related("replicas").defer("cluster")
    )
    page = Paginator(rows, PAGE_SIZE).get_page(request.GET.get("page"))
    context = {"page": page, "rows": [deployment_rows.index_row(deployment) for deployment in page]}
    return render(request, "serving/index.html", context)


@require_GET
def detail(request: HttpRequest, deployment_id: int) -> HttpResponse:
    deployment = get_object_or_404(
        Deployment.objects.select_related("model", "created_by", "plan_run"), pk=deployment_id
    )
    history = Job.objects.about(deployment.subject).select_related("started_by")
    previous = deployments.previous_of(deployment)
    live = live_context(deployment)
    context = live | {
        "job": shown_job(deployment),
        "history": history[:HISTORY],
        "audit": AuditEntry.objects.filter(target=str(deployment))[:HISTORY],
        "previous": previous,
        "previous_has": consequences.difference(previous, deployment) if previous else "",
        "stop_text": consequences.stop_text(deployment),
        "gap": consequences.gap_of(deployment) if deployment.wanted == Deployment.Wanted.STOPPED else "",
        "has_run": any(row.replica.ready_at for row in live["replicas"]),
        "bottleneck": deployment.plan.get("bottleneck"),
        "idle": deployment.plan.get("idle", []),
        "endpoint": f"{settings.GATEWAY_URL}/v1",
        "is_live_plan": deployment.wanted == Deployment.Wanted.RUNNING,
        "worker_ports": deployments.worker_ports(deployment),
        "can_hand_over": handover_cost.hands_over(deployment),
        "handover": handover_cost.cost_of(deployment, traffic.recent_requests(deployment)),
    }
    return render(request, "serving/detail.html", context)


@require_GET
def live(request: HttpRequest, deployment_id: int) -> HttpResponse:
    """The part of the page that changes while one looks at it."""
    deployment = get_object_or_404(Deployment.objects.select_related("model", "plan_run"), pk=deployment_id)
    return render(request, "serving/_live.html", live_context(deployment) | {"is_live": True})


def shown_job(deployment: Deployment) -> Job | None:
    """What is done to it now, or the last that failed."""
    failed = Job.objects.about(deployment.subject).filter(state="failed").first()
    return jobs.active_for(deployment.subject) or failed


def live_context(deployment: Deployment) -> dict[str, Any]:
    replicas = list(deployment.replicas.all())
    for replica in replicas:
        replica.deployment = deployment
    requests = traffic.recent_requests(deployment)
    ended, job = deployments.earlier_ends(deployment), shown_job(deployment)
    return {
        "deployment": deployment,
        "tone": tones.DEPLOYMENT[Deployment.States(deployment.state)],
        "rows": deployment_rows.diagram_rows(deployment, replicas),
        "replicas": deployment_rows.replica_rows(
            replicas, traffic.latest_sample(), requests, ended, pace.paces(deployment, requests)
        ),
        "processes": deployment_rows.process_rows(deployment, deployments.current_processes(deployment)),
        "earlier": deployment_rows.process_rows(deployment, ended),
        "answers": any(replica.state == Replica.States.READY for replica in replicas),
        "brought_back": deployments.brought_back(deployment),
        "reason": "" if job is not None and job.error == deployment.state_reason else deployment.state_reason,
        "is_changing": job is not None and job.is_active,
    }


@require_GET
def effect(request: HttpRequest) -> HttpResponse:
    """What deploying a run's plan, or a deployment's once more, would do, for the question before it."""
    known = asked_number(request.GET.get("deployment", ""))
    if known:
        old = get_object_or_404(Deployment.objects.select_related("model", "plan_run"), pk=known)
        ids = old.plan_run.device_ids if old.plan_run else {}
        gap, text = consequences.gap(old.plan, ids), consequences.consequences(old.plan, old.model, ids)
    else:
        run = get_object_or_404(PlanRun, pk=asked_number(request.GET.get("plan_run", "")), plan__isnull=False)
        plan = run.plan or {}
        gap, text = (
            consequences.gap(plan, run.device_ids),
            consequences.consequences(plan, run.model, run.device_ids),
        )
    if gap:
        return HttpResponse(gap, content_type="text/plain; charset=utf-8", headers={REFUSED_HEADER: "1"})
    return HttpResponse(text, content_type="text/plain; charset=utf-8")


@require_POST
@operator_required
def deploy(request: HttpRequest) -> HttpResponse:
    """Deploy the plan of a run that is already there."""
    run = get_object_or_404(PlanRun, pk=asked_number(request.POST.get("plan_run", "")))
    try:
        deployment = deployments.deploy_run(run, person(request))
    except jobs.AlreadyRunning as error:
        return to_running(request, error)
    except (CannotDeploy, BadLaunch) as error:
        messages.error(request, str(error))
        return redirect("planner:run", run.pk)
    return redirect("serving:detail", deployment.pk)


@require_POST
@operator_required
def stop(request: HttpRequest, deployment_id: int) -> HttpResponse:
    deployment = get_object_or_404(Deployment, pk=deployment_id)
    deployments.stop(deployment, person(request))
    return redirect("serving:detail", deployment.pk)


@require_POST
@operator_required
def again(request: HttpRequest, deployment_id: int) -> HttpResponse:
    return started(request, get_object_or_404(Deployment, pk=deployment_id), deployments.deploy_again)


@require_POST
@operator_required
def roll_back(request: HttpRequest, deployment_id: int) -> HttpResponse:
    return started(request, get_object_or_404(Deployment, pk=deployment_id), deployments.roll_back)


def started(request: HttpRequest, old: Deployment, start: Any) -> HttpResponse:
    try:
        new = start(old, person(request))
    except jobs.AlreadyRunning as error:
        return to_running(request, error)
    except (CannotDeploy, BadLaunch) as error:
        messages.error(request, str(error))
        return redirect("serving:detail", old.pk)
    return redirect("serving:detail", new.pk)


def to_running(request: HttpRequest, refusal: jobs.AlreadyRunning) -> HttpResponse:
    """The page of what is under way on the same devices: a second click ends where the first did."""
    text = f"{refusal} Your request was dropped: ask again when that has ended, or stop it first."
    messages.info(request, text)
    return redirect("serving:detail", refusal.job.params["deployment"])


@require_POST
@operator_required
def restart(request: HttpRequest, replica_id: int) -> HttpResponse:
    replica = get_object_or_404(Replica.objects.select_related("deployment"), pk=replica_id)
    try:
        deployments.restart_replica(replica, person(request))
    except jobs.AlreadyRunning as error:
        messages.error(request, str(error))
    return redirect("serving:detail", replica.deployment_id)


@require_POST
@operator_required
def drain(request: HttpRequest, replica_id: int) -> HttpResponse:
    replica = get_object_or_404(Replica.objects.select_related("deployment"), pk=replica_id)
    try:
        deployments.drain_replica(replica, person(request))
    except (CannotDrain, jobs.AlreadyRunning) as error:
        messages.error(request, str(error))
    return redirect("serving:detail", replica.deployment_id)


@require_POST
@operator_required
def handover(request: HttpRequest, deployment_id: int) -> HttpResponse:
    """Switch the hand-over of a running deployment on or off."""
    deployment = get_object_or_404(Deployment.objects.select_related("model"), pk=deployment_id)
    try:
        handover_cost.switch(deployment, person(request), on=request.POST.get("on") == "1")
    except CannotSwitch as error:
        messages.error(request, str(error))
    return redirect("serving:detail", deployment.pk)


@require_GET
def log(request: HttpRequest, process_id: int) -> HttpResponse:
    """The last lines of a process's log, fetched from its host when asked for."""
    process = get_object_or_404(ManagedProcess.objects.select_related("device__identity"), pk=process_id)
    text, problem, words = process.exit_reason, "", request.GET.get("words", "")
    if process.ended_at is None:
        try:
            text = async_to_sync(logs.tail)(process)
        except RemoteError as error:
            problem = str(error)
    context = {
        "process": process,
        "found": logs.matching(text, words),
        "words": words,
        "problem": problem,
        "log_id": f"log-{process.pk}",
        "label": f"Log of the {process.get_kind_display()} on {process.device}",
    }
    return render(request, "serving/_log.html", context)

"""The list of long work, one job, and its cancel button."""

from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_GET, require_POST

from accounts.models import User
from accounts.services import audit, client_address, operator_required
from jobs import services
from jobs.models import Job

PAGE_SIZE = 50


@require_GET
def index(request: HttpRequest) -> HttpResponse:
    jobs = Paginator(Job.objects.select_related("started_by"), PAGE_SIZE).get_page(request.GET.get("page"))
    return render(request, "jobs/index.html", {"jobs": jobs})


@require_GET
def detail(request: HttpRequest, job_id: int) -> HttpResponse:
    job = get_object_or_404(Job.objects.select_related("started_by"), pk=job_id)
    return render(request, "jobs/detail.html", {"job": job})


@require_POST
@operator_required
def cancel(request: HttpRequest, job_id: int) -> HttpResponse:
    assert isinstance(request.user, User), "every page but sign-in asks for a logged-in user"
    job = get_object_or_404(Job, pk=job_id)
    services.cancel(job)
    audit(request.user, "job.cancelled", job.label, {"job": job.pk}, client_address(request))
    back = request.POST.get("next", "")
    if not url_has_allowed_host_and_scheme(back, allowed_hosts={request.get_host()}):
        return redirect("jobs:detail", job.pk)
    return redirect(back)

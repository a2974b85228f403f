"""The home page and the answer for whoever watches the process."""

from django.contrib.auth.decorators import login_not_required
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET


@require_GET
def home(request: HttpRequest) -> HttpResponse:
    return render(request, "e2llm_web/home.html")


@require_GET
@login_not_required
def healthz(request: HttpRequest) -> HttpResponse:
    connection.ensure_connection()
    return HttpResponse("ok\n", content_type="text/plain")

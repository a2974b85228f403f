"""The home page and the answer for whoever watches the process."""

from django.contrib.auth.decorators import login_not_required
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from e2llm_web import home as home_page


@require_GET
def home(request: HttpRequest) -> HttpResponse:
    return render(request, "e2llm_web/home.html", home_page.page())


@require_GET
def home_live(request: HttpRequest) -> HttpResponse:
    return render(request, "e2llm_web/_live.html", home_page.live())


@require_GET
@login_not_required
def healthz(request: HttpRequest) -> HttpResponse:
    connection.ensure_connection()
    return HttpResponse("ok\n", content_type="text/plain")

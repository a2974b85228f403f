"""The home page, the answer for whoever watches the process, and the answer when something breaks."""

import sys

from django.contrib.auth.decorators import login_not_required
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.template.loader import render_to_string
from django.views import defaults
from django.views.decorators.csrf import requires_csrf_token
from django.views.decorators.http import require_GET

from accounts.models import User
from e2llm_web import home as home_page
from e2llm_web import outages


@require_GET
def home(request: HttpRequest) -> HttpResponse:
    assert isinstance(request.user, User), "every page but sign-in asks for a logged-in user"
    return render(request, "e2llm_web/home.html", home_page.page(request.user))


@require_GET
def home_live(request: HttpRequest) -> HttpResponse:
    return render(request, "e2llm_web/_live.html", home_page.live())


@require_GET
@login_not_required
def healthz(request: HttpRequest) -> HttpResponse:
    connection.ensure_connection()
    return HttpResponse("ok\n", content_type="text/plain")


@requires_csrf_token
def server_error(request: HttpRequest) -> HttpResponse:
    """An outage of the database is a 503 with a time to come back; anything else is a mistake of ours."""
    error = sys.exc_info()[1]
    if not isinstance(error, outages.OUTAGES):
        return defaults.server_error(request)
    page = render_to_string("503.html", {"cause": outages.cause(error)})
    return HttpResponse(page, status=503, headers={"Retry-After": str(outages.COME_BACK_SECONDS)})

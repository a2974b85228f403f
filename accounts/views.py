"""Signing in, one's own account, and what only an admin may see."""

from __future__ import annotations

import tomllib
from importlib.metadata import version

from django.conf import settings
from django.contrib import messages
from django.contrib.auth import login, update_session_auth_hash
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.forms import SetPasswordForm
from django.core.paginator import Paginator
from django.db import connection
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from accounts import services
from accounts.forms import ApiKeyForm, NewUserForm, UserForm
from accounts.models import ApiKey, AuditEntry, User
from accounts.services import admin_required, audit, client_address

PAGE_SIZE = 50
ABOUT_PACKAGES = (
    "django",
    "channels",
    "celery",
    "redis",
    "uvicorn",
    "numpy",
    "scipy",
    "asyncssh",
    "cryptography",
)


@never_cache
@login_not_required
@require_http_methods(["GET", "POST"])
def login_link(request: HttpRequest, token: str) -> HttpResponse:
    """A page with one button: link previews and prefetches must not use up the link."""
    if request.method == "GET":
        return render(request, "accounts/login_link.html")
    user = services.redeem_login_link(token)
    if user is None:
        return render(request, "accounts/login_link.html", {"is_refused": True}, status=403)
    login(request, user, backend="django.contrib.auth.backends.ModelBackend")
    audit(user, "user.signed_in", user, {"by": "one-time link"}, client_address(request))
    return redirect("home")


@require_GET
def me(request: HttpRequest) -> HttpResponse:
    return render(request, "accounts/me.html", {"has_password": _person(request).has_usable_password()})


@sensitive_post_parameters()
@require_http_methods(["GET", "POST"])
def password(request: HttpRequest) -> HttpResponse:
    user = _person(request)
    form = SetPasswordForm(user, request.POST or None)
    if request.method == "POST" and form.is_valid():
        form.save()
        update_session_auth_hash(request, user)
        audit(user, "user.password_set", user, address=client_address(request))
        messages.success(request, "Your password is set. Other sessions of yours have ended.")
        return redirect("accounts:me")
    return render(request, "accounts/password.html", {"form": form})


@never_cache
@require_http_methods(["GET", "POST"])
def keys(request: HttpRequest) -> HttpResponse:
    """One's own keys, an admin sees everybody's; a new key is shown in the answer and nowhere else."""
    user = _person(request)
    form = ApiKeyForm(request.POST or None)
    new_key = None
    if request.method == "POST" and form.is_valid():
        key, new_key = services.create_api_key(user, **form.cleaned_data)
        audit(user, "api_key.created", key, {"ends": str(key.expires_at)}, client_address(request))
        form = ApiKeyForm()
    shown = ApiKey.objects.select_related("user").order_by("revoked_at", "-created_at")
    if not user.is_admin:
        shown = shown.filter(user=user)
    return render(
        request,
        "accounts/keys.html",
        {"form": form, "keys": shown, "new_key": new_key, "endpoint": f"{settings.GATEWAY_URL}/v1"},
    )


@require_POST
def revoke_key(request: HttpRequest, key_id: int) -> HttpResponse:
    user = _person(request)
    visible = ApiKey.objects.all() if user.is_admin else ApiKey.objects.filter(user=user)
    key = get_object_or_404(visible, pk=key_id)
    services.revoke_api_key(key)
    audit(user, "api_key.revoked", key, address=client_address(request))
    messages.success(request, f"The key {key} is revoked; requests with it are refused.")
    return redirect("accounts:keys")


@require_http_methods(["GET", "POST"])
@admin_required
def users(request: HttpRequest) -> HttpResponse:
    form = NewUserForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        user = form.save()
        audit(_person(request), "user.added", user, {"role": user.role}, client_address(request))
        return _show_link(request, user)
    return render(request, "accounts/users.html", {"form": form, "people": User.objects.order_by("username")})


@require_http_methods(["GET", "POST"])
@admin_required
def edit_user(request: HttpRequest, user_id: int) -> HttpResponse:
    person = get_object_or_404(User, pk=user_id)
    before = {"role": person.role, "is_active": person.is_active}
    form = UserForm(request.POST or None, instance=person)
    if request.method == "POST" and form.is_valid():
        form.save()
        change = {"before": before, "after": {"role": person.role, "is_active": person.is_active}}
        audit(_person(request), "user.changed", person, change, client_address(request))
        messages.success(request, f"{person} is saved.")
        return redirect("accounts:users")
    return render(request, "accounts/user.html", {"form": form, "person": person})


@require_POST
@admin_required
def new_link(request: HttpRequest, user_id: int) -> HttpResponse:
    person = get_object_or_404(User, pk=user_id, is_active=True)
    audit(_person(request), "login_link.created", person, address=client_address(request))
    return _show_link(request, person)


def _show_link(request: HttpRequest, person: User) -> HttpResponse:
    token = services.create_login_link(person.username)
    link = request.build_absolute_uri(reverse("accounts:login_link", args=[token]))
    context = {"person": person, "link": link, "life_hours": services.LOGIN_LINK_LIFE.total_seconds() // 3600}
    return render(request, "accounts/new_link.html", context)


@require_GET
@admin_required
def audit_log(request: HttpRequest) -> HttpResponse:
    words = request.GET.get("q", "").strip()
    entries = AuditEntry.objects.select_related("user")
    if words:
        entries = entries.filter(
            Q(username__icontains=words) | Q(action__icontains=words) | Q(target__icontains=words)
        )
    page = Paginator(entries, PAGE_SIZE).get_page(request.GET.get("page"))
    return render(request, "accounts/audit.html", {"page": page, "words": words})


@require_GET
def about(request: HttpRequest) -> HttpResponse:
    packages = {name: version(name) for name in ABOUT_PACKAGES}
    project = tomllib.loads((settings.BASE_DIR / "pyproject.toml").read_text())["project"]
    context = {"packages": packages.items(), "database": connection.vendor, "version": project["version"]}
    return render(request, "accounts/about.html", context)


def _person(request: HttpRequest) -> User:
    assert isinstance(request.user, User), "every page but sign-in asks for a logged-in user"
    return request.user

"""Signing in, one's own account, and what only an admin may see."""

from __future__ import annotations

import tomllib
from dataclasses import asdict
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
from accounts.forms import ApiKeyForm, NewUserForm, UserForm, key_form
from accounts.models import ApiKey, AuditEntry, User
from accounts.services import admin_required, audit, client_address

PAGE_SIZE = 50
NEW_KEY, NEW_LINK = "api_key", "login_link"
WANTS_PASSWORD = "set-password"  # noqa: S105  a word of an address, no password
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
    refusal = services.refusal_of_link(token)
    if request.method == "GET":
        return _link_page(request, refusal)
    user = services.redeem_login_link(token)
    if user is None:
        return _link_page(request, refusal or services.LinkRefusal.USED)
    login(request, user, backend="django.contrib.auth.backends.ModelBackend")
    audit(user, "user.signed_in", user, {"by": "one-time link"}, client_address(request))
    return redirect("accounts:password" if WANTS_PASSWORD in request.GET else "home")


def _link_page(request: HttpRequest, refusal: services.LinkRefusal | None) -> HttpResponse:
    return render(request, "accounts/login_link.html", {"refusal": refusal}, status=403 if refusal else 200)


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
    """One's own keys, an admin sees everybody's; a new key is shown on the next look and never again."""
    user = _person(request)
    form = ApiKeyForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        name, days = form.cleaned_data["name"], form.cleaned_data["days"]
        key, text = services.create_api_key(user, name, terms=form.terms(), days=days)
        terms = {"expires_at": key.expires_at, **asdict(key.terms)}
        made = {field: services.audited(field, value) for field, value in terms.items()}
        audit(user, "api_key.created", key, made, client_address(request))
        services.show_once(request, NEW_KEY, text)
        return redirect("accounts:keys")
    new_key = services.take_shown(request, NEW_KEY) if request.method == "GET" else None
    shown = ApiKey.objects.select_related("user").order_by("revoked_at", "-created_at")
    if not user.is_admin:
        shown = shown.filter(user=user)
    return render(
        request,
        "accounts/keys.html",
        {"form": form, "keys": shown, "new_key": new_key, "endpoint": f"{settings.GATEWAY_URL}/v1"},
    )


@require_http_methods(["GET", "POST"])
def key(request: HttpRequest, key_id: int) -> HttpResponse:
    """What one key may do, how much it did, and a form that changes the first."""
    user = _person(request)
    one = _visible_key(user, key_id)
    form = key_form(one, request.POST or None)
    if request.method == "POST" and one.revoked_at is None and form.is_valid():
        data = form.cleaned_data
        change = services.change_api_key(one, data["name"], form.terms(), data["expires_at"])
        if change:
            audit(user, "api_key.changed", one, change, client_address(request))
        messages.success(request, f"The key {one} is saved; the gateway knows it within seconds.")
        return redirect("accounts:key", one.pk)
    return render(request, "accounts/key.html", {"form": form, "key": one})


def _visible_key(user: User, key_id: int) -> ApiKey:
    visible = ApiKey.objects.select_related("user")
    return get_object_or_404(visible if user.is_admin else visible.filter(user=user), pk=key_id)


@require_POST
def revoke_key(request: HttpRequest, key_id: int) -> HttpResponse:
    user = _person(request)
    key = _visible_key(user, key_id)
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
        return _to_new_link(request, user)
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


@never_cache
@require_http_methods(["GET", "POST"])
@admin_required
def new_link(request: HttpRequest, user_id: int) -> HttpResponse:
    """A POST makes a link, the page it leads to shows it; that page makes none when it is loaded again."""
    person = get_object_or_404(User, pk=user_id, is_active=True)
    if request.method == "POST":
        audit(_person(request), "login_link.created", person, address=client_address(request))
        return _to_new_link(request, person)
    link = services.take_shown(request, f"{NEW_LINK}.{person.pk}")
    context = {"person": person, "link": link, "life_hours": services.LOGIN_LINK_LIFE.total_seconds() // 3600}
    return render(request, "accounts/new_link.html", context)


def _to_new_link(request: HttpRequest, person: User) -> HttpResponse:
    token = services.create_login_link(person.username)
    link = request.build_absolute_uri(reverse("accounts:login_link", args=[token]))
    if not person.has_usable_password():
        link += f"?{WANTS_PASSWORD}"
    services.show_once(request, f"{NEW_LINK}.{person.pk}", link)
    return redirect("accounts:new_link", person.pk)


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

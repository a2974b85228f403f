"""SSH identities: the key pairs with which we log in."""

from __future__ import annotations

from django.contrib import messages
from django.db.models import Count
from django.db.models.deletion import ProtectedError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_http_methods, require_POST

from accounts.services import admin_required, audit, client_address
from inventory import services
from inventory.core.quantities import counted
from inventory.forms.identity import IdentityForm
from inventory.models import SshIdentity
from inventory.views.adding import REJECTED, person


@require_http_methods(["GET", "POST"])
@admin_required
def index(request: HttpRequest) -> HttpResponse:
    form = IdentityForm(request.POST or None)
    if form.is_valid() and (saved := form.save()):
        audit(person(request), "identity.added", saved.name, {}, client_address(request))
        messages.success(request, f"{saved.name} was saved.")
        return redirect("inventory:identities")
    services.default_identity()
    context = {
        "form": form,
        "identities": SshIdentity.objects.annotate(devices=Count("device")).order_by("name"),
    }
    return render(request, "inventory/identities.html", context, status=REJECTED if form.errors else 200)


@require_POST
@admin_required
def remove(request: HttpRequest, identity_id: int) -> HttpResponse:
    identity = get_object_or_404(SshIdentity, pk=identity_id)
    try:
        identity.delete()
    except ProtectedError as error:
        messages.error(
            request,
            f"{identity.name} is used by {counted(len(error.protected_objects), 'device')}: remove what uses it first.",
        )
        return redirect("inventory:identities")
    audit(person(request), "identity.removed", identity.name, {}, client_address(request))
    messages.success(request, f"{identity.name} was removed.")
    return redirect("inventory:identities")

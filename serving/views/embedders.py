"""Serving a model that makes embeddings: one form, one device."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_http_methods

from accounts.services import operator_required
from inventory.models import LanguageModel
from jobs import services as jobs
from serving.core.placement import BadLaunch
from serving.forms import EmbeddingsForm
from serving.services.deployments import CannotDeploy
from serving.services.embedders import serve_embeddings
from serving.views.deployments import person

REJECTED = 422


@require_http_methods(["GET", "POST"])
@operator_required
def serve(request: HttpRequest, model_id: int) -> HttpResponse:
    model = get_object_or_404(LanguageModel, pk=model_id)
    form = EmbeddingsForm(model, request.POST or None)
    if request.method == "POST" and form.is_valid():
        data = form.cleaned_data
        try:
            deployment = serve_embeddings(
                model, data["device"], data["slots"], data["context_tokens"], person(request)
            )
            return redirect("serving:detail", deployment.pk)
        except (CannotDeploy, BadLaunch, jobs.AlreadyRunning) as error:
            form.add_error(None, str(error))
    rejected = request.method == "POST"
    context = {"form": form, "model": model}
    return render(request, "serving/embedder.html", context, status=REJECTED if rejected else 200)

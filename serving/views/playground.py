"""The playground: a page, and the stream behind it."""

from __future__ import annotations

from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse, StreamingHttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_POST

from accounts.core.asked_number import asked_number
from accounts.models import User
from serving import upstream
from serving.services import conversations, playground
from serving.services.playground import BadQuestion
from serving.views.deployments import person

CODE_KINDS = [("curl", "curl"), ("python", "Python"), ("javascript", "JavaScript")]
NO_GATEWAY = (
    "The gateway does not answer. The supervisor starts it again within seconds; "
    "if it stays silent, look at its log in the terminal of `up`."
)


@require_GET
def index(request: HttpRequest) -> HttpResponse:
    models = playground.served_models()
    chat = asked_number(request.GET.get("chat", ""))
    context = {
        "models": models,
        "resting": None if models else playground.resting(),
        "replicas": playground.answering_replicas() if person(request).is_operator else [],
        "endpoint": f"{settings.GATEWAY_URL}/v1",
        "code_kinds": CODE_KINDS,
        "conversations": conversations.of(person(request)),
        "chat": chat,
        "messages_kept": conversations.messages_of(person(request), chat) if chat else [],
    }
    return render(request, "serving/playground.html", context)


@require_GET
def compare(request: HttpRequest) -> HttpResponse:
    models = playground.served_models()
    resting = None if models else playground.resting()
    user = person(request)
    context = {
        "models": models,
        "resting": resting,
        "replicas": playground.answering_replicas() if user.is_operator else [],
        "sides": [
            {"name": name, "replica": asked_number(request.GET.get(name.lower(), ""))}
            for name in ("Left", "Right")
        ],
    }
    return render(request, "serving/compare.html", context)


@require_POST
async def ask(request: HttpRequest) -> HttpResponseBase:
    """Stream one answer from the gateway, on behalf of the person who is logged in."""
    user = await request.auser()
    assert isinstance(user, User), "every page but sign-in asks for a logged-in user"
    try:
        question = playground.read_question(request.body)
        events = await playground.ask(user, question)
    except BadQuestion as error:
        return refusal(400, str(error))
    except upstream.Declined as error:
        words = await playground.why_refused(question, error)
        return refusal(error.status, words, playground.inspected_as(error))
    except upstream.UpstreamError:
        return refusal(502, NO_GATEWAY)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingHttpResponse(events, content_type="text/event-stream", headers=headers)


@require_POST
def keep(request: HttpRequest) -> JsonResponse:
    """Save the chat as the page has it now."""
    try:
        kept = conversations.keep(person(request), request.body)
    except BadQuestion as error:
        return refusal(400, str(error))
    return JsonResponse({"id": kept.pk, "title": kept.title})


@require_GET
def export(request: HttpRequest, conversation_id: int) -> HttpResponse:
    """A chat of one's own as a Markdown file, or as JSON with ?as=json."""
    chat = get_object_or_404(person(request).conversations, pk=conversation_id)
    if request.GET.get("as") == "json":
        answer: HttpResponse = JsonResponse(conversations.as_json(chat), json_dumps_params={"indent": 1})
        kind = "json"
    else:
        answer = HttpResponse(conversations.as_markdown(chat), content_type="text/markdown; charset=utf-8")
        kind = "md"
    answer["Content-Disposition"] = f'attachment; filename="chat-{chat.pk}.{kind}"'
    return answer


@require_POST
def forget(request: HttpRequest, conversation_id: int) -> HttpResponse:
    conversations.forget(person(request), conversation_id)
    return redirect("serving:playground")


def refusal(status: int, message: str, request_id: str = "") -> JsonResponse:
    return JsonResponse({"error": {"message": message, "request_id": request_id}}, status=status)

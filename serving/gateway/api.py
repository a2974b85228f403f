"""The gateway's addresses: who may ask what, and how an answer or a fault goes back."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from django.utils import timezone

from accounts.core.key_terms import Scope
from serving import upstream
from serving.core.anthropic import error_of, messages_request
from serving.core.balancer import Refused
from serving.core.body import BadRequest, parse
from serving.core.openai import Generation, chat_request, completion_request
from serving.gateway.answer import Answer, StreamedAnswer, StreamedMessage, WholeAnswer, WholeMessage
from serving.gateway.arriving import served
from serving.gateway.capabilities import check_tools
from serving.gateway.choices import run_choices
from serving.gateway.continuing import Resumed, resume
from serving.gateway.doorway import CROWDED
from serving.gateway.embedding import embed
from serving.gateway.ending import translated, watched
from serving.gateway.entrance import admitted, caller_of, crowded, visiting
from serving.gateway.errors import ApiError, bad_request, schema_refused
from serving.gateway.gateway import Gateway
from serving.gateway.generation import Call, Run
from serving.gateway.http import Client, ClientGone, Message, Receive, Recording, Send
from serving.gateway.keys import Caller
from serving.gateway.prompt import tokens_of
from serving.gateway.reshaped import shaped
from serving.gateway.routes import Route
from serving.gateway.timeline import Timeline

KEPT_CHARACTERS = 100_000
Handler = Callable[[Gateway, Client], Awaitable[None]]
Reader = Callable[[dict[str, Any], int], Generation]


async def serve(gateway: Gateway, scope: Message, receive: Receive, send: Send) -> None:
    """One HTTP request, with every fault as an OpenAI-shaped error."""
    client = Client(scope, receive, send)
    client.request_id = f"req-{secrets.token_hex(12)}"
    try:
        client.check_headers(gateway.limits)
        if CROWDED in scope.get("extensions", {}):
            client.extra_headers.append((b"connection", b"close"))
            raise crowded()
        with visiting(gateway, (scope["client"] or [""])[0], client.header(b"x-forwarded-for")):
            await respond(gateway, client)
    except (ApiError, Refused, upstream.UpstreamError) as fault:
        await client.refuse(translated(fault, client.request_id))
    except ClientGone:
        return
    finally:
        client.stop_watching()


async def respond(gateway: Gateway, client: Client) -> None:
    if allows_origin(client, gateway.limits.cors_origins):
        await preflight(client)
    else:
        await handler(client)(gateway, client)


def allows_origin(client: Client, origins: frozenset[str]) -> bool:
    """Name the page's origin in every answer when it is an allowed one; true when it only asks whether it is."""
    origin = client.header(b"origin")
    if not origin or not origins & {origin, "*"}:
        return False
    client.extra_headers += [
        (b"access-control-allow-origin", origin.encode()),
        (b"access-control-expose-headers", SHOWN_TO_PAGES),
        (b"vary", b"origin"),
    ]
    return client.method == "OPTIONS"


async def preflight(client: Client) -> None:
    allowed = [
        (b"access-control-allow-methods", b"GET, POST"),
        (
            b"access-control-allow-headers",
            b"authorization, content-type, x-api-key, x-e2llm-timing, idempotency-key",
        ),
        (b"access-control-max-age", b"600"),
    ]
    await client.start(204, allowed)
    await client.end()


def handler(client: Client) -> Handler:
    method, answer = ADDRESSES.get(client.path, ("", None))
    if answer is None and client.path.startswith(MODEL_PATH):
        method, answer = "GET", one_model
    if answer is None:
        raise ApiError(404, "unknown_url", f"there is nothing at {client.path}")
    if client.method != method:
        raise ApiError(405, "method_not_allowed", f"{client.path} takes {method}")
    return answer


async def alive(gateway: Gateway, client: Client) -> None:
    await client.json(200, {"status": "ok"})


async def ready(gateway: Gateway, client: Client) -> None:
    now = gateway.clock()
    routes = gateway.routes.by_deployment.values()
    serving = any(backend.takes(now) for route in routes for backend in route.balancer.backends.values())
    hindrance = "draining" if gateway.is_draining else gateway.refusal()
    hindrance = hindrance or ("" if serving else "no replica is in service")
    await client.json(503 if hindrance else 200, {"status": hindrance or "ok"})


async def metrics(gateway: Gateway, client: Client) -> None:
    caller_of(gateway, client, Scope.METRICS)
    await client.answer(
        200, gateway.metrics.text(gateway.routes), b"text/plain; version=0.0.4; charset=utf-8"
    )


async def models(gateway: Gateway, client: Client) -> None:
    caller = caller_of(gateway, client)
    routes = gateway.routes.by_deployment.values()
    newest = {route.name: route for route in routes if caller.may_use(route.name)}
    cards = [model_card(route.name, route.created) for route in newest.values()]
    await client.json(200, {"object": "list", "data": cards})


async def one_model(gateway: Gateway, client: Client) -> None:
    name = client.path.removeprefix(MODEL_PATH)
    caller_of(gateway, client).check_model(name)
    route = gateway.routes.find(name)
    await client.json(200, model_card(route.name, route.created))


def model_card(name: str, created: int) -> dict[str, object]:
    return {"id": name, "object": "model", "created": created, "owned_by": "e2llm"}


async def chat(gateway: Gateway, client: Client) -> None:
    await generate(gateway, client, chat_request)


async def completions(gateway: Gateway, client: Client) -> None:
    await generate(gateway, client, completion_request)


async def messages(gateway: Gateway, client: Client) -> None:
    client.error_of = error_of
    await generate(gateway, client, messages_request)


async def generate(gateway: Gateway, client: Client, read: Reader) -> None:
    caller = caller_of(gateway, client, Scope.GENERATE)
    await timed(gateway, client, caller, lambda timeline: answered(gateway, client, caller, timeline, read))


async def timed(
    gateway: Gateway, client: Client, caller: Caller, work: Callable[[Timeline], Awaitable[None]]
) -> None:
    """Do work that ends up as a row of the traffic page."""
    if gateway.is_draining:
        raise ApiError(503, "draining", "this gateway is stopping", retry_after_seconds=2.0)
    timeline = Timeline(client.request_id, timezone.now(), gateway.clock(), key_id=caller.key_id)
    timeline.from_playground = caller.is_playground
    try:
        await watched(gateway, client, timeline, work(timeline))
    finally:
        gateway.ended(timeline)


async def answered(
    gateway: Gateway, client: Client, caller: Caller, timeline: Timeline, read: Reader
) -> None:
    with admitted(gateway, caller):
        await answered_once(gateway, client, caller, timeline, read)


async def answered_once(
    gateway: Gateway, client: Client, caller: Caller, timeline: Timeline, read: Reader
) -> None:
    """The answer, or with an idempotency key the one that was given before."""
    body = await client.body(gateway.limits)
    key = client.header(b"idempotency-key")
    if not key:
        return await run(gateway, client, caller, timeline, read_request(body, read))
    name = (caller.key, key)
    digest = hashlib.sha256(client.path.encode() + body).hexdigest()
    if recorded := gateway.repeats.begin(name, digest, gateway.clock()):
        return await client.replay(recorded)
    client.recording = Recording()
    try:
        await run(gateway, client, caller, timeline, read_request(body, read))
    except BaseException:
        gateway.repeats.end(name, None)
        raise
    gateway.repeats.end(name, client.recording)
    return None


async def run(
    gateway: Gateway, client: Client, caller: Caller, timeline: Timeline, request: Generation
) -> None:
    replica = chosen_replica(client, caller)
    caller.check_model(request.model)
    timeline.is_stream = request.streams

    async def work(route: Route) -> None:
        await run_on(Call(gateway, route, client, caller, request, timeline, replica))

    if replica is not None:
        return await work(gateway.routes.of_replica(replica))
    return await served(gateway, client, timeline, request.model, work)


async def run_on(call: Call) -> None:
    """One try at the answer, on one deployment."""
    gateway, route, request, timeline = call.gateway, call.route, call.request, call.timeline
    timeline.deployment, timeline.model = route.deployment, route.name
    if route.makes_embeddings:
        text = f"{request.model} makes embeddings and no text; ask for them at /v1/embeddings"
        raise ApiError(400, "not_supported", text, param="model")
    if gateway.keeps_prompts:
        timeline.prompt = prompt_text(request)
    if "tools" in request.body:
        await check_tools(gateway.capabilities, call.client, route, request, gateway.limits.control_seconds)
    answer = answer_for(call.client, timeline, request)
    if request.continues:
        request = await resume(request, route.any_endpoint(), gateway.limits.control_seconds)
        answer = Resumed(answer)
    call = replace(call, request=request)
    try:
        await (run_choices(call) if request.choices > 1 else Run(call, shaped(answer, request)).run())
    except upstream.Declined as error:
        raise schema_refused(str(error), request.body) or error from error


def chosen_replica(client: Client, caller: Caller) -> int | None:
    """The replica that our own pages ask for; a key of a client leaves it to the balancer."""
    text = client.header(b"x-e2llm-replica")
    if not text:
        return None
    if not caller.is_playground:
        raise ApiError(403, "replica_not_yours_to_choose", "only the playground may choose the replica")
    if not text.isascii() or not text.isdigit():
        raise ApiError(400, "invalid_replica", f"{text[:40]!r} is no number of a replica")
    return int(text)


def prompt_text(request: Generation) -> str:
    asked = request.body.get("messages", request.body.get("prompt"))
    return json.dumps(asked, ensure_ascii=False)[:KEPT_CHARACTERS]


def read_request(body: bytes, read: Reader) -> Generation:
    try:
        return read(parse(body), len(body))
    except BadRequest as error:
        raise bad_request(error) from error


def answer_for(client: Client, timeline: Timeline, request: Generation) -> Answer:
    if client.error_of is error_of:
        if request.streams:
            return StreamedMessage(client, timeline, request)
        return WholeMessage(client, timeline, request, client.wants_timing)
    kind = StreamedAnswer if request.streams else WholeAnswer
    return kind(client, timeline, request, client.wants_timing)


async def count_tokens(gateway: Gateway, client: Client) -> None:
    client.error_of = error_of
    tokens = await tokens_asked(
        gateway, client, lambda value, size: messages_request({"max_tokens": 1, **value}, size)
    )
    await client.json(200, {"input_tokens": len(tokens)})


async def tokenize(gateway: Gateway, client: Client) -> None:
    """The tokens of a text, or of messages as the model would see them."""
    read = tokenize_request
    await client.json(200, {"tokens": await tokens_asked(gateway, client, read)})


def tokenize_request(value: dict[str, Any], size: int) -> Generation:
    if "messages" in value:
        return chat_request(value, size)
    text = value.get("content", value.get("prompt", ""))
    return completion_request({"model": value.get("model"), "prompt": text}, size)


async def tokens_asked(gateway: Gateway, client: Client, read: Reader) -> list[int]:
    caller = caller_of(gateway, client, Scope.TOKENIZE)
    with admitted(gateway, caller):
        request = read_request(await client.body(gateway.limits), read)
        caller.check_model(request.model)
        endpoint = gateway.routes.find(request.model).any_endpoint()
        return await tokens_of(request, endpoint, gateway.limits.control_seconds)


async def embeddings(gateway: Gateway, client: Client) -> None:
    caller = caller_of(gateway, client, Scope.EMBED)

    async def work(timeline: Timeline) -> None:
        with admitted(gateway, caller):
            await embed(gateway, client, caller, timeline)

    await timed(gateway, client, caller, work)


MODEL_PATH = "/v1/models/"
SHOWN_TO_PAGES = (
    b"x-request-id, retry-after, x-e2llm-note, x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens"
)
ADDRESSES: dict[str, tuple[str, Handler]] = {
    "/healthz": ("GET", alive),
    "/readyz": ("GET", ready),
    "/metrics": ("GET", metrics),
    "/v1/models": ("GET", models),
    "/v1/chat/completions": ("POST", chat),
    "/v1/completions": ("POST", completions),
    "/v1/embeddings": ("POST", embeddings),
    "/v1/messages": ("POST", messages),
    "/v1/messages/count_tokens": ("POST", count_tokens),
    "/tokenize": ("POST", tokenize),
}

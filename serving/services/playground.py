"""The playground's way to the gateway: the same door and the same limits as any other client."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from urllib.parse import urlsplit

from django.conf import settings

from accounts.core.asked_number import asked_number
from accounts.models import User
from accounts.services import internal_key
from serving import upstream
from serving.core import backoff, sse
from serving.core.fault_words import GATEWAY_LOST, UNMET_CHOICE, chosen_words, cut_words, refusal_words
from serving.models import Deployment, Replica

CHAT_PATH = "/v1/chat/completions"
TIMING_HEADER = {"X-E2LLM-Timing": "1"}
ROLES = frozenset({"system", "user", "assistant"})
MAX_MESSAGES = 400
MAX_ANSWER_TOKENS = 32_768
MAX_SEED = 2**53 - 1  # the largest whole number of a script
DEADLINES = upstream.Deadlines(first_token_seconds=900.0, inter_token_seconds=120.0, total_seconds=7200.0)
GONE = (404, 503)
UNRECORDED = ("standing_by", "draining", "too_many_connections")  # refused before anything was timed
NOT_ANSWERING = {
    Deployment.States.STARTING: "is starting and does not answer yet. Its page shows how far it is.",
    Deployment.States.STOPPING: "is being stopped: answers under way may end, new questions are refused.",
    Deployment.States.STOPPED: "was stopped. Deploy it again on its page, or reload this one for other models.",
    Deployment.States.FAILED: "failed and does not answer. Its page says why.",
}
ENDING = (Replica.States.DRAINING, Replica.States.STOPPING, Replica.States.STOPPED)


Number = TypeVar("Number", int, float)
Fallback = TypeVar("Fallback", int, float, None)


class BadQuestion(Exception):
    """The page sent something that cannot be asked."""


@dataclass(frozen=True)
class Question:
    model: str
    messages: list[dict[str, str]]
    temperature: float
    max_tokens: int
    top_p: float | None = None
    seed: int | None = None
    replica: int | None = None  # the one that has to answer, for comparing; None leaves it to the gateway

    def body(self) -> dict[str, Any]:
        """What the gateway is asked; an answer at the end is one that was cut and goes on."""
        given = {"top_p": self.top_p, "seed": self.seed}
        return {
            "model": self.model,
            "messages": self.messages,
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            **{name: value for name, value in given.items() if value is not None},
            **({"continue_final_message": True} if self.messages[-1]["role"] == "assistant" else {}),
            "stream": True,
            "stream_options": {"include_usage": True},
        }


def read_question(content: bytes) -> Question:
    """The question in a request's body; BadQuestion names what is wrong with it."""
    try:
        given = json.loads(content)
        question = Question(
            model=str(given["model"]),
            messages=read_messages(given["messages"]),
            temperature=read_number(given, "temperature", float, 0.8),
            max_tokens=read_number(given, "max_tokens", int, 512),
            top_p=read_number(given, "top_p", float, None),
            seed=read_number(given, "seed", int, None),
            replica=asked_number(str(given.get("replica") or "")) or None,
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise BadQuestion(f"The question could not be read: {error!r}. Reload the page.") from None
    refuse_bad(question)
    return question


def read_number(
    given: dict[str, Any], name: str, kind: Callable[[Any], Number], otherwise: Fallback
) -> Number | Fallback:
    """A field as a number; what the page leaves empty is what is taken otherwise."""
    return otherwise if given.get(name) is None else kind(given[name])


def refuse_bad(question: Question) -> None:
    if not question.messages:
        raise BadQuestion("Write a message first.")
    if not math.isfinite(question.temperature) or not 0 <= question.temperature <= 2:
        raise BadQuestion("The temperature must lie between 0 and 2.")
    if not 1 <= question.max_tokens <= MAX_ANSWER_TOKENS:
        raise BadQuestion(f"The answer may have 1 to {MAX_ANSWER_TOKENS} tokens.")
    if question.top_p is not None and not 0 <= question.top_p <= 1:
        raise BadQuestion("Top p must lie between 0 and 1.")
    if question.seed is not None and abs(question.seed) > MAX_SEED:
        raise BadQuestion(f"The seed must lie between -{MAX_SEED} and {MAX_SEED}.")


def read_messages(given: Any) -> list[dict[str, str]]:
    """Role and content of each message; BadQuestion when there are too many or a role is unknown."""
    messages = [{"role": str(one["role"]), "content": str(one["content"])} for one in given]
    if len(messages) > MAX_MESSAGES or not {one["role"] for one in messages} <= ROLES:
        raise BadQuestion(f"A conversation has up to {MAX_MESSAGES} messages of system, user or assistant.")
    return messages


async def ask(user: User, question: Question) -> AsyncIterator[bytes]:
    """The gateway's events for this question, once it has begun to answer; its refusals are raised as they are."""
    address = urlsplit(settings.GATEWAY_URL)
    target = upstream.Target(address.hostname or "127.0.0.1", address.port or 80, internal_key(user))
    headers = dict(TIMING_HEADER)
    if question.replica is not None:
        if not user.is_operator:
            raise BadQuestion("Only an operator may choose the replica that answers.")
        question = replace(question, model=await model_of(question.replica))
        headers["X-E2LLM-Replica"] = str(question.replica)
    stream = await upstream.open_stream(target, CHAT_PATH, question.body(), DEADLINES, headers)
    return relay(stream)


async def model_of(replica: int) -> str:
    """The name of the model that a replica serves."""
    found = await Replica.objects.filter(pk=replica).select_related("deployment").afirst()
    if found is None:
        raise BadQuestion("The chosen replica is gone. Reload the page for those that are there.")
    return found.deployment.name


async def relay(stream: upstream.Stream) -> AsyncIterator[bytes]:
    """Events as they come; when the page goes away the gateway is told by closing the connection."""
    try:
        while events := await stream.events():
            yield b"".join(map(in_words, sse.split(events))) if b'"error":' in events else events
    except upstream.UpstreamError:
        yield sse.event({"error": {"message": GATEWAY_LOST, "code": "stream_interrupted"}})
    finally:
        stream.close()


def in_words(event: bytes) -> bytes:
    """An event as it is, but for the gateway's error, which says to a person what to do."""
    value = sse.payload(event)
    if "error" not in value:
        return event
    return sse.event(value | {"error": {**value["error"], "message": cut_words(value["error"]["cause"])}})


async def why_refused(question: Question, error: upstream.Declined) -> str:
    """What is happening to the replica or deployment that was asked, or the gateway's refusal in a person's words."""
    code = error.details.get("code", "")
    if question.replica is not None and code in UNMET_CHOICE:
        return await why_not_by(question.replica)
    named = Deployment.objects.filter(name=question.model).order_by("-id")
    asked = await named.filter(wanted=Deployment.Wanted.RUNNING).afirst() or await named.afirst()
    if error.status in GONE and question.replica is None and asked is not None:
        words = NOT_ANSWERING.get(Deployment.States(asked.state))
        if words:
            return f"{asked} {words}"
    return refusal_words(code, str(error))


async def why_not_by(chosen: int) -> str:
    replica = await Replica.objects.select_related("deployment").aget(pk=chosen)
    return chosen_words(f"{replica.label} of {replica.deployment}", how_it_is(replica))


def how_it_is(replica: Replica) -> str:
    """A key of CHOSEN."""
    states = Replica.States
    if replica.state == states.READY:
        return "ready"
    if replica.deployment.wanted == Deployment.Wanted.STOPPED or replica.state in ENDING:
        return "ending"
    if replica.state == states.FAILED:
        return "given_up" if backoff.is_over(replica.restarts) else "failed"
    return "starting"


def inspected_as(error: upstream.Declined) -> str:
    """The number under which the request inspector has a refused request; empty when it was not written down."""
    return "" if error.details.get("code") in UNRECORDED else error.request_id


@dataclass(frozen=True)
class Resting:
    """Why nothing answers now, and the deployment to watch, if there is one."""

    title: str
    text: str
    deployment: Deployment | None


def resting() -> Resting:
    wanted = Deployment.objects.filter(wanted=Deployment.Wanted.RUNNING).first()
    if wanted is not None:
        text = f"{wanted} is starting, or waits for a device. Its page shows how far it is."
        return Resting("Not ready yet", text, wanted)
    stopping = Deployment.objects.filter(state=Deployment.States.STOPPING).first()
    if stopping is not None:
        return Resting("Stopping", f"{stopping} {NOT_ANSWERING[Deployment.States.STOPPING]}", stopping)
    text = "No deployment is running. Plan and deploy a model, then ask it here."
    return Resting("Nothing to talk to yet", text, None)


def answering_replicas() -> list[Replica]:
    """Replicas that can be asked alone: ready, and not one that only computes prompts for others."""
    ready = Replica.objects.filter(
        state=Replica.States.READY, deployment__wanted=Deployment.Wanted.RUNNING
    ).select_related("deployment")
    return [
        replica
        for replica in ready
        if replica.role != Replica.Roles.PREFILL or not replica.deployment.handover_on
    ]


def served_models() -> list[str]:
    """Names of models that make text and that the gateway answers to, the newest first."""
    running = Deployment.objects.filter(
        wanted=Deployment.Wanted.RUNNING, state__in=[Deployment.States.RUNNING, Deployment.States.DEGRADED]
    )
    chatty = [one.name for one in running.select_related("model") if not one.makes_embeddings]
    return list(dict.fromkeys(chatty))

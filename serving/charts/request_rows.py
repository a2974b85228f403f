"""One request as a timeline, and requests as rows of a table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from inventory.core.quantities import bandwidth_text, bytes_text, percent_text, seconds_text
from serving.charts import tones
from serving.charts.traffic import PHASES, phase_seconds
from serving.models import RequestSample

ABSENT = "–"
HANDOVERS: dict[str, str] = {
    RequestSample.Handovers.NONE: "None",
    RequestSample.Handovers.HIT: "Worked",
    RequestSample.Handovers.FALLBACK: "Fell back",
}
UNANSWERED: dict[str, str] = {
    RequestSample.Outcomes.REFUSED: "Until it was refused",
    RequestSample.Outcomes.CANCELLED: "Until the client left",
    RequestSample.Outcomes.FAILED: "Until it failed",
    RequestSample.Outcomes.CUT: "Until it was cut off",
}
NOT_TOLD_APART = "Prefill and first step"  # a replica gives their lengths with the end of its answer
REMEDIES = {
    400: "The request itself is at fault: the client has to change it, asking again does not help.",
    403: "The key may not do this: its owner or an admin can change what it may, in Settings.",
    404: "Nothing of this name is served: /v1/models lists the names.",
    413: "The request is too large: the client has to send less.",
    429: "The key has as much under way as it may have: raise its limits in Settings, or let the client wait as "
    "Retry-After says.",
    502: "Its replica failed; the deployment's page says what became of it. The client may ask again.",
    503: "There was no place for it: more slots or fewer clients help, and a client that waits as Retry-After says.",
    504: "Its replica fell silent and is looked after; the deployment's page says how. The client may ask again.",
}


@dataclass(frozen=True)
class Bar:
    label: str
    text: str
    left_percent: float
    width_percent: float
    colour: str


def row(request: RequestSample) -> dict[str, Any]:
    return {
        "request": request,
        "tone": tones.OUTCOME[RequestSample.Outcomes(request.outcome)],
        "handover_tone": tones.HANDOVER[RequestSample.Handovers(request.handover)],
        "handover": HANDOVERS[request.handover],
        "path": path_text(request),
        "rate": request.tokens_per_second(),
    }


def path_text(request: RequestSample) -> str:
    """Such as P1 (box-1) → D2 (box-3)."""
    labels = []
    for replica in (request.prefill_replica, request.decode_replica):
        if replica is not None and replica.label not in labels:
            labels.append(replica.label)
    return " → ".join(labels) or "no replica"


def timeline(request: RequestSample) -> list[Bar]:
    """The phases of the request after one another, as shares of its whole time."""
    total = request.total_seconds or 1e-9
    began = 0.0
    bars = []
    for label, seconds, colour in spans(request):
        bars.append(bar(label, began, seconds, total, colour))
        began += seconds
    return bars


def spans(request: RequestSample) -> Iterator[tuple[str, float, str]]:
    """Name, length and colour of each phase that took time, up to the end of the request."""
    known = 0.0
    for name, label, colour in PHASES:
        steps = handover_steps(request) if name == "handover_seconds" else []
        if name == "prefill_seconds" and request.prefill_seconds is None:
            label = NOT_TOLD_APART
        for step, seconds in steps or [(label, phase_seconds(request, name))]:
            if seconds:
                yield step, seconds, colour
                known += seconds
    decode, rest = request.decode_seconds(), request.total_seconds - known
    if decode:
        yield "Tokens after the first", decode, "var(--gpu)"
    elif request.first_token_seconds is None and rest > 0.001 * request.total_seconds:
        yield UNANSWERED.get(request.outcome, "Until it ended"), rest, "var(--danger)"


def handover_steps(request: RequestSample) -> list[tuple[str, float]]:
    """Save, move and restore as far as each was timed."""
    steps = (
        ("Hand-over: save", request.save_seconds),
        ("Hand-over: move", request.move_seconds),
        ("Hand-over: restore", request.restore_seconds),
    )
    return [(label, seconds) for label, seconds in steps if seconds is not None]


def handover_text(request: RequestSample) -> str:
    """What was moved, how long that took, and how fast the file crossed the link."""
    if not request.handover_bytes:
        return ABSENT
    text = bytes_text(request.handover_bytes)
    if request.handover_seconds:
        text += f" in {seconds_text(request.handover_seconds)}"
    if request.move_seconds:
        text += f", the file itself at {bandwidth_text(request.handover_bytes / request.move_seconds)}"
    return text


def prompt_text(request: RequestSample) -> str:
    """Tokens of the prompt, and how many of them lay in a cache."""
    if request.prompt_tokens is None:
        return ABSENT
    text = f"{request.prompt_tokens:,} token{'' if request.prompt_tokens == 1 else 's'}"
    if request.cached_tokens is None:
        return text
    share = percent_text(request.cached_tokens / request.prompt_tokens) if request.prompt_tokens else "0 %"
    return f"{text}, {request.cached_tokens:,} reused ({share})"


def asker_text(request: RequestSample) -> str:
    """Whose key it came with."""
    if request.api_key is not None:
        return f"{request.api_key.name} of {request.api_key.user.username}"
    if request.status == HTTPStatus.UNAUTHORIZED:
        return "none that is known"
    if request.from_playground is None:
        return "the playground or a removed key"
    return "none: asked in the playground" if request.from_playground else "a key that was removed since"


def answer_text(request: RequestSample) -> str:
    """Tokens that were sent; a client that left may not have read the last of them."""
    tokens = ABSENT if request.output_tokens is None else f"{request.output_tokens:,}"
    sent = " sent before the client left" if request.outcome == RequestSample.Outcomes.CANCELLED else ""
    return f"{tokens} tokens{sent}"


def bar(label: str, began: float, seconds: float, total: float, colour: str) -> Bar:
    left = min(100 * began / total, 100.0)
    return Bar(label, seconds_text(seconds), left, max(min(100 * seconds / total, 100 - left), 0.4), colour)


def reasons(request: RequestSample) -> list[str]:
    """Sentences about where the time went, what fell back, and why it was refused or failed."""
    return [*why_it_ended(request), *why_it_waited(request), *why_it_fell_back(request)]


def why_it_ended(request: RequestSample) -> Iterator[str]:
    if request.retry_reason:
        yield f"It was tried again on another replica, since nothing had been sent: {request.retry_reason}"
    if request.error:
        begun = "before it reached a replica" if request.decode_replica_id is None else "by its replica"
        yield f"It was refused {begun}: {request.error}" if is_refused(request) else request.error
    if request.outcome != RequestSample.Outcomes.OK and request.status in REMEDIES:
        yield REMEDIES[request.status]


def is_refused(request: RequestSample) -> bool:
    return request.outcome == RequestSample.Outcomes.REFUSED


def why_it_waited(request: RequestSample) -> Iterator[str]:
    first, queued = request.first_token_seconds, request.queued_seconds or 0.0
    if first and queued > 0.5 * first:
        yield (
            f"It spent {seconds_text(queued)} of {seconds_text(first)} in the queue: every slot of its role was taken. "
            "More decode slots or a faster prefill would help; ask the planner with this traffic."
        )


def why_it_fell_back(request: RequestSample) -> Iterator[str]:
    if request.handover == RequestSample.Handovers.FALLBACK and request.handover_error:
        is_alone = request.prefill_replica_id == request.decode_replica_id
        where = "the replica that had begun it" if is_alone else "the decode replica"
        yield f"The hand-over fell back to a plain prompt on {where}: {request.handover_error}."

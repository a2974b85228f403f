"""One request as a timeline, and requests as rows of a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from inventory.core.quantities import bytes_text, seconds_text
from serving.charts import tones
from serving.charts.traffic import PHASES, phase_seconds
from serving.models import RequestSample


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
    for name, label, colour in PHASES:
        seconds = phase_seconds(request, name)
        if seconds:
            bars.append(bar(label, began, seconds, total, colour))
            began += seconds
    decode = request.decode_seconds()
    if decode:
        bars.append(bar("Tokens after the first", began, decode, total, "var(--gpu)"))
    return bars


def bar(label: str, began: float, seconds: float, total: float, colour: str) -> Bar:
    left = min(100 * began / total, 100.0)
    return Bar(label, seconds_text(seconds), left, max(min(100 * seconds / total, 100 - left), 0.4), colour)


def why_it_waited(request: RequestSample) -> list[str]:
    """Sentences about where the time went and what fell back."""
    said = []
    first = request.first_token_seconds
    queued = request.queued_seconds or 0.0
    if request.outcome == RequestSample.Outcomes.REFUSED:
        said.append(f"It was refused before it reached a replica: {request.error}")
    elif request.error:
        said.append(request.error)
    if first and queued > 0.5 * first:
        said.append(
            f"It spent {seconds_text(queued)} of {seconds_text(first)} in the queue: every slot of its role was taken. "
            "More decode slots or a faster prefill would help; ask the planner with this traffic."
        )
    if request.handover == RequestSample.Handovers.FALLBACK:
        said.append(
            f"The hand-over fell back to a plain prompt on the decode replica: {request.handover_error or 'unknown'}."
        )
    if (
        request.handover == RequestSample.Handovers.HIT
        and request.handover_bytes
        and request.handover_seconds
    ):
        said.append(
            f"{bytes_text(request.handover_bytes)} of KV cache moved in {seconds_text(request.handover_seconds)}."
        )
    return said

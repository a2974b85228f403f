"""What happened to one request and when, from the first byte to the row that is kept of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from serving.core.handover import Handover, Step
from serving.gateway.routes import Endpoint
from serving.models import RequestSample

Outcomes = RequestSample.Outcomes


@dataclass
class Timeline:
    """Times are seconds on the gateway's monotonic clock."""

    request_id: str
    received_at: datetime
    received: float
    deployment: int | None = None
    key_id: int | None = None
    model: str = ""  # the name of one that is served; what a client made up names no time series
    from_playground: bool = False
    is_stream: bool = False
    outcome: str = Outcomes.OK
    status: int = 200
    error: str = ""
    bound: float | None = None
    second_wait_seconds: float = 0.0
    retry_reason: str = ""
    prompt: str = ""  # only while an admin has it kept
    first_token: float | None = None
    ended: float | None = None
    prefill: Endpoint | None = None
    decode: Endpoint | None = None
    handover: Handover | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None  # of an earlier conversation; not what a hand-over brought
    output_tokens: int | None = None
    streamed_events: int = 0  # all that is known of an answer that was cut
    timings: dict[str, Any] = field(default_factory=dict)

    def note_cut(self, prompt_tokens: int | None) -> None:
        """The figures of an answer that did not end: the tokens that came, and those of the prompt if known."""
        if self.first_token is not None and self.output_tokens is None:
            self.prompt_tokens, self.output_tokens = prompt_tokens, self.streamed_events

    def start_over(self) -> None:
        """Forget a try of which the client has seen nothing; the time goes on."""
        self.bound = self.first_token = self.prompt_tokens = self.output_tokens = None
        self.second_wait_seconds, self.streamed_events = 0.0, 0
        self.prefill = self.decode = self.handover = None

    def fail(self, outcome: str, status: int, error: str) -> None:
        self.outcome, self.status, self.error = outcome, status, storable(error, 500)

    @property
    def queued_seconds(self) -> float | None:
        """Until a slot was bound, and again until the decode slot was."""
        return None if self.bound is None else self.bound - self.received + self.second_wait_seconds

    @property
    def prefill_seconds(self) -> float | None:
        if self.handover:
            return self.handover.seconds(Step.PREFILL)
        milliseconds = self.timings.get("prompt_ms")
        return None if milliseconds is None else milliseconds / 1000

    @property
    def prefilled_tokens(self) -> int | None:
        """Prompt tokens that were computed; the others lay in a cache."""
        return self.handover.computed_tokens if self.handover else self.timings.get("prompt_n")

    @property
    def handover_seconds(self) -> float | None:
        """Save, move and restore."""
        if self.handover is None or Step.SAVE not in self.handover.ended_at:
            return None
        return sum(self._step_seconds(step) or 0.0 for step in (Step.SAVE, Step.MOVE, Step.RESTORE))

    def _step_seconds(self, step: Step) -> float | None:
        return self.handover.seconds(step) if self.handover and step in self.handover.ended_at else None

    @property
    def first_token_seconds(self) -> float | None:
        return None if self.first_token is None else self.first_token - self.received

    @property
    def total_seconds(self) -> float:
        assert self.ended is not None, "a timeline is read when its request has ended"
        return self.ended - self.received

    @property
    def handover_outcome(self) -> str:
        """One that was not finished because the request ended did neither work nor fall back."""
        if self.handover is None:
            return RequestSample.Handovers.NONE
        if self.handover.step == Step.FALLBACK:
            return RequestSample.Handovers.FALLBACK
        arrived = self.handover.is_done and self.first_token is not None
        return RequestSample.Handovers.HIT if arrived else RequestSample.Handovers.NONE

    def row(self) -> RequestSample:
        return RequestSample(
            request_id=self.request_id,
            deployment_id=self.deployment,
            api_key_id=self.key_id,
            from_playground=self.from_playground,
            received_at=self.received_at,
            outcome=self.outcome,
            status=self.status,
            error=self.error,
            is_stream=self.is_stream,
            prefill_replica_id=self.prefill.replica if self.prefill else None,
            decode_replica_id=self.decode.replica if self.decode else None,
            handover=self.handover_outcome,
            handover_error=storable(self.handover.reason, 300) if self.handover else "",
            handover_bytes=self.handover.saved_bytes if self.handover else None,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            output_tokens=self.output_tokens,
            queued_seconds=self.queued_seconds,
            prefilled_tokens=self.prefilled_tokens,
            prefill_seconds=self.prefill_seconds,
            handover_seconds=self.handover_seconds,
            save_seconds=self._step_seconds(Step.SAVE),
            move_seconds=self._step_seconds(Step.MOVE),
            restore_seconds=self._step_seconds(Step.RESTORE),
            retry_reason=storable(self.retry_reason, 300),
            first_token_seconds=self.first_token_seconds,
            total_seconds=self.total_seconds,
        )

    def for_client(self) -> dict[str, Any]:
        """The `e2llm` object of an answer whose client asked for timings."""
        return {
            "request_id": self.request_id,
            "waited_seconds": self.queued_seconds,
            "ttft_seconds": self.first_token_seconds,
            "tokens_per_second": self.timings.get("predicted_per_second"),
            "prefill_replica": self.prefill.label if self.prefill else None,
            "decode_replica": self.decode.label if self.decode else None,
            "handover": self.handover_outcome,
            "cached_tokens": self.cached_tokens,
        }


def storable(text: str, characters: int) -> str:
    """PostgreSQL takes no NUL in a text, and a host may send one."""
    return text.replace("\0", "")[:characters]

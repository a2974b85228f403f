"""Figures for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from serving.gateway.routes import Routes
from serving.gateway.timeline import Timeline

PHASES = ("queue", "prefill", "handover", "first_token", "total")
SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


class Metrics:
    """Counters grow as requests end; gauges are read when they are asked for."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = self._counter("e2llm_requests", "Requests by how they ended", ["outcome", "status"])
        self.handovers = self._counter("e2llm_handovers", "Hand-overs by result", ["result"])
        self.handover_bytes = self._counter("e2llm_handover_bytes", "Bytes of slot files handed over", [])
        self.prompt_tokens = self._counter("e2llm_prompt_tokens", "Prompt tokens", ["from_cache"])
        self.output_tokens = self._counter("e2llm_output_tokens", "Generated tokens", [])
        self.phases = Histogram(
            "e2llm_phase_seconds", "Seconds of each phase", ["phase"], buckets=SECONDS, registry=self.registry
        )
        # Looking up a label costs more than counting, so those of every request are looked up once.
        self.cached_tokens = self.prompt_tokens.labels("yes")
        self.computed_tokens = self.prompt_tokens.labels("no")
        self.seconds = {phase: self.phases.labels(phase) for phase in PHASES}
        self.waiting = self._gauge("e2llm_waiting_requests", "Requests in the queue", ["deployment"])
        self.running = self._gauge("e2llm_running_requests", "Slots in use", ["deployment", "replica"])
        self.slots = self._gauge("e2llm_slots", "Slots", ["deployment", "replica"])

    def observe(self, timeline: Timeline) -> None:
        self.requests.labels(timeline.outcome, str(timeline.status)).inc()
        phases = {
            "queue": timeline.queued_seconds,
            "prefill": timeline.prefill_seconds,
            "handover": timeline.handover_seconds,
            "first_token": timeline.first_token_seconds,
            "total": timeline.total_seconds,
        }
        for phase, seconds in phases.items():
            if seconds is not None:
                self.seconds[phase].observe(seconds)
        if timeline.handover is not None:
            self.handovers.labels(timeline.handover_outcome).inc()
            self.handover_bytes.inc(timeline.handover.saved_bytes)
        if timeline.prompt_tokens is not None and timeline.cached_tokens is not None:
            self.cached_tokens.inc(timeline.cached_tokens)
            self.computed_tokens.inc(timeline.prompt_tokens - timeline.cached_tokens)
        self.output_tokens.inc(timeline.output_tokens or 0)

    def text(self, routes: Routes) -> bytes:
        for gauge in (self.waiting, self.running, self.slots):
            gauge.clear()
        for route in routes.by_deployment.values():
            name = str(route.deployment)
            self.waiting.labels(name).set(len(route.balancer.waiting))
            for backend in route.balancer.backends.values():
                self.running.labels(name, str(backend.replica)).set(backend.running)
                self.slots.labels(name, str(backend.replica)).set(backend.slots)
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str, labels: list[str]) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, labels: list[str]) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry)

"""Figures for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from serving.gateway.routes import Routes
from serving.gateway.timeline import Timeline

PHASES = ("queue", "prefill", "handover", "first_token", "total")
REPLICA_LABELS = ["model", "deployment", "replica", "replica_name"]
SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


class Metrics:
    """Counters grow as requests end; gauges are read when they are asked for."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = self._counter(
            "e2llm_requests", "Requests by how they ended", ["model", "outcome", "status"]
        )
        self.handovers = self._counter("e2llm_handovers", "Hand-overs by result", ["model", "result"])
        self.handover_bytes = self._counter("e2llm_handover_bytes", "Bytes of slot files handed over", [])
        self.prompt_tokens = self._counter("e2llm_prompt_tokens", "Prompt tokens", ["model", "from_cache"])
        self.output_tokens = self._counter("e2llm_output_tokens", "Generated tokens", ["model"])
        self.phases = Histogram(
            "e2llm_phase_seconds", "Seconds of each phase", ["phase"], buckets=SECONDS, registry=self.registry
        )
        # Looking up a label costs more than counting, so those of every request are looked up once.
        self.seconds = {phase: self.phases.labels(phase) for phase in PHASES}
        self.waiting = self._gauge("e2llm_waiting_requests", "Requests in the queue", ["model", "deployment"])
        self.running = self._gauge("e2llm_running_requests", "Slots in use", REPLICA_LABELS)
        self.slots = self._gauge("e2llm_slots", "Slots", REPLICA_LABELS)

    def observe(self, timeline: Timeline) -> None:
        self.requests.labels(timeline.model, timeline.outcome, str(timeline.status)).inc()
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
            self.handovers.labels(timeline.model, timeline.handover_outcome).inc()
            self.handover_bytes.inc(timeline.handover.saved_bytes)
        if timeline.prompt_tokens is not None and timeline.cached_tokens is not None:
            computed_tokens = timeline.prompt_tokens - timeline.cached_tokens
            self.prompt_tokens.labels(timeline.model, "yes").inc(timeline.cached_tokens)
            self.prompt_tokens.labels(timeline.model, "no").inc(computed_tokens)
        if timeline.output_tokens is not None:
            self.output_tokens.labels(timeline.model).inc(timeline.output_tokens)

    def text(self, routes: Routes) -> bytes:
        for gauge in (self.waiting, self.running, self.slots):
            gauge.clear()
        for route in routes.by_deployment.values():
            name, number = route.name, str(route.deployment)
            self.waiting.labels(name, number).set(len(route.balancer.waiting))
            for backend in route.balancer.backends.values():
                label = route.endpoints[backend.replica].label
                labels = (name, number, str(backend.replica), label)
                self.running.labels(*labels).set(backend.running)
                self.slots.labels(*labels).set(backend.slots)
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str, labels: list[str]) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, labels: list[str]) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry)

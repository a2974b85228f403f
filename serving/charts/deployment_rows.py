"""One deployment for its page: replicas with measured beside predicted, processes with planned beside held memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from statistics import median
from typing import Any

from inventory.core.quantities import bytes_text, counted, percent_text, rate_text
from planner.charts import stage_rows
from serving.charts import tones
from serving.charts.against_plan import against_plan, with_all
from serving.core import backoff
from serving.core.stage_memory import PlannedMemory, held_bytes, stage_on, weight_limit
from serving.models import Deployment, ManagedProcess, Replica, RequestSample, TrafficSample

ABSENT = "–"
SERVING = (Replica.States.READY, Replica.States.DRAINING)


@dataclass(frozen=True)
class Figure:
    """A predicted number and what was measured of it; `text` says how far apart they are."""

    label: str
    predicted: str
    measured: str
    text: str


@dataclass(frozen=True)
class Pace:
    """Tokens per second of one answer: what was measured, and what was planned for as many busy slots."""

    busy: int
    measured: float
    planned: float


@dataclass(frozen=True)
class ReplicaRow:
    replica: Replica
    tone: str
    busy: int | None
    waiting: int | None
    percent: int
    figures: list[Figure] = field(default_factory=list)
    last_fault: str = ""

    @property
    def ready_since(self) -> datetime | None:
        """None while it is not."""
        return self.replica.ready_at if self.replica.state in SERVING else None

    @property
    def restarts_text(self) -> str:
        """How often it was started again, and whether that goes on."""
        count = self.replica.restarts
        if not count:
            return ""
        if self.replica.state == Replica.States.FAILED and backoff.is_over(count):
            return f"Started again {counted(count, 'time')} in vain and no more: restart it when the cause is gone"
        why = f", the last time because {self.last_fault}" if self.last_fault else ""
        return f"Restarted by itself {counted(count, 'time')}{why}"

    @property
    def busy_text(self) -> str:
        return f"{ABSENT if self.busy is None else self.busy} of {self.replica.slots}"


@dataclass(frozen=True)
class ProcessRow:
    process: ManagedProcess
    device: str
    tone: str
    command: str
    memory: str

    @property
    def cause(self) -> str:
        return cause_of(self.process)

    @property
    def code_id(self) -> str:
        return f"command-{self.process.pk}"

    @property
    def log_id(self) -> str:
        return f"log-box-{self.process.pk}"


def diagram_rows(deployment: Deployment, replicas: Sequence[Replica]) -> list[dict[str, Any]]:
    """Stage rows of the plan, each with the state of its replica; none where nothing was predicted."""
    rows = stage_rows(deployment.plan, deployment.cluster)
    for replica in replicas if rows else ():
        tone = tones.REPLICA[Replica.States(replica.state)]
        rows[replica.index]["state"] = {"tone": tone, "label": replica.get_state_display(), "icon": ""}
    return rows


def replica_rows(
    replicas: Sequence[Replica],
    latest: TrafficSample | None,
    requests: Sequence[RequestSample],
    ended: Sequence[ManagedProcess],
    paces: Mapping[int, Pace],
) -> list[ReplicaRow]:
    """`ended`: processes that ended by themselves, the latest first; `paces` by the replica's id."""
    loads = {load["replica"]: load for load in latest.replicas} if latest else {}
    faults = {process.replica_id: fault_of(process) for process in reversed(ended)}
    return [
        replace(
            replica_row(replica, loads.get(replica.pk)),
            last_fault=faults.get(replica.pk, ""),
            figures=figures(replica, requests, paces.get(replica.pk)),
        )
        for replica in replicas
    ]


def fault_of(process: ManagedProcess) -> str:
    cause = cause_of(process).rstrip(".")
    how = cause.removeprefix("it ") if cause.startswith("it hung") else f"ended: {cause}"
    return f"{process.get_kind_display()} on {process.device} {how}"


def cause_of(process: ManagedProcess) -> str:
    """Why it ended, without the log behind it."""
    return process.exit_reason.partition("\n\n")[0]


def replica_row(replica: Replica, load: dict[str, Any] | None) -> ReplicaRow:
    busy = 0 if replica.state not in SERVING else load["running"] if load else None
    return ReplicaRow(
        replica=replica,
        tone=tones.REPLICA[Replica.States(replica.state)],
        busy=busy,
        waiting=load["waiting"] if load else None,
        percent=round(100 * (busy or 0) / replica.slots) if replica.slots else 0,
    )


def figures(replica: Replica, requests: Sequence[RequestSample], pace: Pace | None) -> list[Figure]:
    """The plan's promises for this replica beside the medians of what it did."""
    plan = replica.deployment.plan["replicas"][replica.index]
    found = []
    if replica.role != Replica.Roles.PREFILL and plan.get("tpot_seconds"):
        answered = [request for request in requests if request.decode_replica_id == replica.pk]
        found.append(of_answers(replica.slots, 1 / plan["tpot_seconds"], bool(answered), pace))
    if replica.role != Replica.Roles.DECODE and plan.get("prefill_tokens_per_second"):
        own = [request for request in requests if request.prefilled_by_id == replica.pk]
        rates = [request.prefill_rate() for request in own]
        found.append(compared("Prompt tokens per s", plan["prefill_tokens_per_second"], rates, "prompts"))
    return found


def of_answers(slots: int, planned: float, has_answers: bool, pace: Pace | None) -> Figure:
    """`planned` holds while every slot is busy; an answer that was made alone is held against another number."""
    label = "Tokens per s of one answer"
    if pace is None:
        text = f"{rate_text(planned)}{with_all(slots)}"
        return Figure(label, text, ABSENT, nothing_known("answers", has_requests=has_answers))
    text = rate_text(pace.planned)
    if slots > 1:
        text = f"{text} with {pace.busy} of {slots} slots busy"
        text += f" ({rate_text(planned)} with all)" if pace.busy < slots else ""
    return Figure(label, text, rate_text(pace.measured), against_plan(pace.measured, pace.planned))


def nothing_known(what: str, *, has_requests: bool) -> str:
    return f"the {what} of the last hour were too short to tell" if has_requests else "none in the last hour"


def compared(label: str, predicted: float, rates: Sequence[float | None], what: str) -> Figure:
    """A prediction beside the median of what was measured; a request that says nothing gave no rate."""
    known = [rate for rate in rates if rate is not None]
    if not known:
        return Figure(label, rate_text(predicted), ABSENT, nothing_known(what, has_requests=bool(rates)))
    measured = median(known)
    words = against_plan(measured, predicted)
    return Figure(label, rate_text(predicted), rate_text(measured), words)


def process_rows(deployment: Deployment, processes: Sequence[ManagedProcess]) -> list[ProcessRow]:
    if not processes:
        return []
    names = device_names(deployment)
    planned = PlannedMemory.of(
        deployment.model.shape, deployment.plan, deployment.cluster, deployment.context_tokens
    )
    return [process_row(planned, process, names) for process in processes]


def device_names(deployment: Deployment) -> dict[int, str]:
    """Inventory id -> the plan's name."""
    ids = deployment.plan_run.device_ids if deployment.plan_run else {}
    return {pk: name for name, pk in ids.items()}


def process_row(planned: PlannedMemory, process: ManagedProcess, names: dict[int, str]) -> ProcessRow:
    device = str(process.device) if process.device else "removed device"
    name, index = names.get(process.device_id or 0, device), process.replica.index
    stage = stage_on(planned.plan["replicas"][index], name)
    limit = weight_limit(planned.shape, stage) if stage else planned.shape.weight_bytes
    return ProcessRow(
        process=process,
        device=device,
        tone=tones.PROCESS[ManagedProcess.States(process.state)],
        command=" ".join(map(quoted, process.argv)),
        memory=memory_text(
            planned.bytes_on(index, name), held_bytes(process.measured.get("buffers", {}), limit)
        ),
    )


def memory_text(planned_bytes: float, held_bytes: int) -> str:
    if not held_bytes:
        return f"{bytes_text(planned_bytes)} planned"
    text = f"{bytes_text(held_bytes)} held, {bytes_text(planned_bytes)} planned"
    if not planned_bytes:
        return text
    ratio = held_bytes / planned_bytes - 1
    return f"{text} ({percent_text(abs(ratio))} {'more' if ratio > 0 else 'less'})"


def quoted(word: str) -> str:
    """The word as a person would type it; only for reading."""
    plain = (
        word.replace("-", "")
        .replace("/", "")
        .replace(".", "")
        .replace("_", "")
        .replace(":", "")
        .replace(",", "")
    )
    return word if plain.isalnum() else "'" + word.replace("'", "'\\''") + "'"


def index_row(deployment: Deployment) -> dict[str, Any]:
    replicas = list(deployment.replicas.all())
    ready = sum(replica.state == Replica.States.READY for replica in replicas)
    devices = {stage["device"] for replica in deployment.plan["replicas"] for stage in replica["stages"]}
    return {
        "deployment": deployment,
        "tone": tones.DEPLOYMENT[Deployment.States(deployment.state)],
        "ready": f"{ready} of {len(replicas)}",
        "devices": len(devices),
        "roles": ", ".join(role_counts(replicas)),
    }


def role_counts(replicas: Sequence[Replica]) -> list[str]:
    counts = [
        (sum(replica.role == role for replica in replicas), label.lower())
        for role, label in Replica.Roles.choices
    ]
    return [f"{count} {label}" for count, label in counts if count]

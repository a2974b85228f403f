"""A plan as values, and its only JSON: `e2llm-plan/1`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from inventory.core.quantities import counted
from planner.core.document import Fields, raise_if_any

Item = TypeVar("Item")
PLAN_FORMAT = "e2llm-plan/1"
PLANNER_VERSION = "1"
MODES = ("disaggregated", "mixed")
ROLES = ("prefill", "decode", "mixed")
MOST_BASELINES = 20
LONGEST_CURVE = 101  # a point for each per cent


@dataclass(frozen=True)
class Stage:
    """The consecutive blocks that one device runs."""

    device: str
    master: bool
    gpu_blocks: int
    cpu_blocks: int
    seconds: float
    gpu_bytes: float
    gpu_limit_bytes: float
    ram_bytes: float

    @property
    def blocks(self) -> int:
        return self.gpu_blocks + self.cpu_blocks


@dataclass(frozen=True)
class Replica:
    """One whole model on one or more devices, in pipeline order."""

    role: str
    slots: int
    micro_batch: int
    stages: tuple[Stage, ...]
    bottleneck_seconds: float
    pass_seconds: float
    tpot_seconds: float
    requests_per_second: float
    prefill_tokens_per_second: float
    decode_tokens_per_second: float

    @property
    def master(self) -> Stage:
        return next(stage for stage in self.stages if stage.master)

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(stage.device for stage in self.stages)


@dataclass(frozen=True)
class Predicted:
    prefill_tokens_per_second: float
    decode_tokens_per_second: float
    max_wait_seconds: float
    mean_wait_seconds: float
    p95_wait_seconds: float
    ttft_seconds: float
    tpot_seconds: float
    utilisation: dict[str, float]
    paper_wait_seconds: float


@dataclass(frozen=True)
class Bottleneck:
    """The stage that binds, with its numbers in a sentence."""

    replica: int
    device: str
    what: str
    seconds: float
    text: str


@dataclass(frozen=True)
class Proof:
    """How sure it is that no plan is better.

    `value` of this plan, `bound` that no plan is below, and `gap` between them are seconds of one quantity, the
    `objective`, where known; what the simulation says of the plan is another quantity.
    """

    method: str
    optimal: bool
    bound: float | None
    gap: float | None
    evaluations: int
    objective: str | None = None  # a plan of an earlier version does not say
    value: float | None = None


@dataclass(frozen=True)
class Plan:
    mode: str
    replicas: tuple[Replica, ...]
    idle: tuple[str, ...]
    predicted: Predicted
    bottleneck: Bottleneck
    proof: Proof
    baselines: dict[str, Any] = field(default_factory=dict)
    assumptions: tuple[str, ...] = ()
    seed: int = 0
    version: str = PLANNER_VERSION
    input_sha256: str = ""

    def to_dict(self) -> dict[str, Any]:
        document: dict[str, Any] = {"format": PLAN_FORMAT, **asdict(self)}
        for key in ("replicas", "idle", "assumptions"):
            document[key] = list(document[key])
        for replica in document["replicas"]:
            replica["stages"] = list(replica["stages"])
        return document

    @classmethod
    def from_dict(cls, document: Any) -> Plan:
        """The plan in a plan file; raises BadDocument naming every fault with its path."""
        problems: list[str] = []
        top = Fields(document, "", problems)
        raise_if_any(problems)
        top.format(PLAN_FORMAT)
        mode = top.choice("mode", MODES)
        replicas = top.each("replicas", _read_replica, minimum=1)
        plan = cls(
            mode=mode,
            replicas=replicas,
            idle=top.texts("idle"),
            predicted=_read_predicted(top.inner("predicted")),
            bottleneck=_read_bottleneck(top.inner("bottleneck")),
            proof=_read_proof(top.inner("proof")),
            baselines=_read_baselines(top),
            assumptions=top.texts("assumptions"),
            seed=top.whole("seed", maximum=2**63 - 1),
            version=top.text("version"),
            input_sha256=top.text("input_sha256"),
        )
        top.close()
        _note_faults(plan, top)
        raise_if_any(problems)
        return plan


def _note_faults(plan: Plan, top: Fields) -> None:
    names = [name for replica in plan.replicas for name in replica.devices] + list(plan.idle)
    for name in sorted({name for name in names if names.count(name) > 1}):
        top.note("replicas", f"{name!r} is used twice")
    for index, replica in enumerate(plan.replicas):
        if sum(stage.master for stage in replica.stages) != 1:
            top.note(f"replicas[{index}].stages", "does not have exactly one master")
        if (replica.role == "mixed") != (plan.mode == "mixed"):
            top.note(f"replicas[{index}].role", f"{replica.role} does not belong in a {plan.mode} plan")
    roles = {replica.role for replica in plan.replicas}
    if plan.mode == "disaggregated" and plan.replicas and not {"prefill", "decode"} <= roles:
        top.note("replicas", "a disaggregated plan needs a prefill and a decode replica")


def _read_baselines(top: Fields) -> dict[str, Any]:
    """As they are, once they hold what a page says of them."""
    document = top.raw("baselines")
    if not document:
        return {}
    inner = Fields(document, "baselines", top.problems)
    if inner.is_object and len(document) > MOST_BASELINES:
        top.note("baselines", f"has {counted(len(document), 'entry', 'entries')}, more than {MOST_BASELINES}")
        return {}
    for key in document if inner.is_object else ():
        one = inner.inner(key)
        one.text("label")
        if one.flag("feasible"):
            one.flag("holds_floor")
            one.number("max_wait_seconds")
            _read_curve(one)
    return dict(document) if inner.is_object else {}


def _read_curve(fields: Fields) -> None:
    """Plans of an earlier version have none."""
    if fields.has("wait_curve_seconds") and len(fields.numbers("wait_curve_seconds")) > LONGEST_CURVE:
        fields.note("wait_curve_seconds", f"has more than {LONGEST_CURVE} points")


def _read_replica(fields: Fields) -> Replica:
    replica = Replica(
        role=fields.choice("role", ROLES),
        slots=fields.whole("slots", minimum=1),
        micro_batch=fields.whole("micro_batch", minimum=1),
        stages=fields.each("stages", _read_stage, minimum=1),
        bottleneck_seconds=fields.number("bottleneck_seconds"),
        pass_seconds=fields.number("pass_seconds"),
        tpot_seconds=fields.number("tpot_seconds"),
        requests_per_second=fields.number("requests_per_second"),
        prefill_tokens_per_second=fields.number("prefill_tokens_per_second"),
        decode_tokens_per_second=fields.number("decode_tokens_per_second"),
    )
    fields.close()
    return replica


def _read_stage(fields: Fields) -> Stage:
    stage = Stage(
        device=fields.name("device"),
        master=fields.flag("master"),
        gpu_blocks=fields.whole("gpu_blocks"),
        cpu_blocks=fields.whole("cpu_blocks"),
        seconds=fields.number("seconds"),
        gpu_bytes=fields.number("gpu_bytes"),
        gpu_limit_bytes=fields.number("gpu_limit_bytes"),
        ram_bytes=fields.number("ram_bytes"),
    )
    fields.close()
    return stage


def _read_predicted(fields: Fields) -> Predicted:
    load = fields.inner("utilisation")
    utilisation = {key: load.number(key) for key in ("prefill", "network", "decode")}
    load.close()
    predicted = Predicted(
        prefill_tokens_per_second=fields.number("prefill_tokens_per_second"),
        decode_tokens_per_second=fields.number("decode_tokens_per_second"),
        max_wait_seconds=fields.number("max_wait_seconds"),
        mean_wait_seconds=fields.number("mean_wait_seconds"),
        p95_wait_seconds=fields.number("p95_wait_seconds"),
        ttft_seconds=fields.number("ttft_seconds"),
        tpot_seconds=fields.number("tpot_seconds"),
        utilisation=utilisation,
        paper_wait_seconds=fields.number("paper_wait_seconds"),
    )
    fields.close()
    return predicted


def _read_bottleneck(fields: Fields) -> Bottleneck:
    bottleneck = Bottleneck(
        fields.whole("replica"),
        fields.text("device"),
        fields.text("what"),
        fields.number("seconds"),
        fields.text("text"),
    )
    fields.close()
    return bottleneck


def _read_proof(fields: Fields) -> Proof:
    proof = Proof(
        method=fields.text("method"),
        optimal=fields.flag("optimal"),
        bound=_number_or_nothing(fields, "bound"),
        gap=_number_or_nothing(fields, "gap"),
        evaluations=fields.whole("evaluations"),
        objective=_of_later_versions(fields, "objective", Fields.text),
        value=_of_later_versions(fields, "value", Fields.number),
    )
    fields.close()
    return proof


def _number_or_nothing(fields: Fields, key: str) -> float | None:
    return None if fields.raw(key) is None else fields.number(key)


def _of_later_versions(fields: Fields, key: str, read: Callable[[Fields, str], Item]) -> Item | None:
    """A field that older plans lack."""
    return None if not fields.has(key) or fields.raw(key) is None else read(fields, key)

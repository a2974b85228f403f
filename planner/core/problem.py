"""What a plan depends on, as frozen values: the cluster file `e2llm-cluster/1`."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from inventory.core.quantities import counted
from planner.core.document import Fields, raise_if_any
from planner.core.errors import BadDocument
from planner.core.fleet import COLUMNS, doubles, relinked, unlike

CLUSTER_FORMAT = "e2llm-cluster/1"
MAX_DEVICES = 256
MAX_BLOCKS = 512
LONGEST_MODEL_NAME = 200  # as long as the registry of models allows
LARGEST_SEED = 2**63 - 1
RUNTIMES = ("serial", "overlapped")
TOPOLOGIES = ("star", "chain")
ARRIVALS = ("fixed", "poisson")
MAIN_POOLS = ("gpu", "unified", "cpu")
BUFFERS = ("logits_slot_bytes", "master_compute_bytes", "worker_compute_bytes")  # 0 in a file without them


@dataclass(frozen=True)
class LatencyTable:
    """Measured seconds per block and for the head, against the micro-batch (decode) or prompt tokens (prefill)."""

    points: tuple[float, ...]
    gpu_block_seconds: tuple[float, ...]
    cpu_block_seconds: tuple[float, ...] | None
    head_seconds: tuple[float, ...]


@dataclass(frozen=True)
class Device:
    name: str
    kind: str
    gpu_usable_bytes: float
    ram_usable_bytes: float
    decode: LatencyTable
    prefill: LatencyTable
    hardware: str = ""
    can_be_master: bool = True
    max_blocks: int | None = None
    main_pool: str | None = None  # what `gpu_usable_bytes` is a limit of; None where nobody said

    @property
    def signature(self) -> tuple[Any, ...]:
        """Equal for two devices exactly when one may stand in for the other."""
        memory = (self.gpu_usable_bytes, self.ram_usable_bytes)
        return (*memory, self.decode, self.prefill, self.can_be_master, self.max_blocks)


@dataclass(frozen=True)
class Link:
    bytes_per_second: float
    latency_seconds: float


@dataclass(frozen=True)
class BlockKind:
    block_bytes: float
    block_resident_bytes: float
    kv_slot_block_bytes: float


@dataclass(frozen=True)
class ModelShape:
    name: str
    blocks: int
    embedding_length: int
    block_bytes: float
    block_resident_bytes: float
    kv_slot_block_bytes: float
    output_bytes: float
    embedding_bytes: float
    logits_buffer_bytes: float
    slot_overhead_bytes: float
    kv_handoff_bytes_per_token: float
    kv_handoff_bytes_per_request: float
    block_kinds: tuple[str, ...] = ()
    kinds: tuple[tuple[str, BlockKind], ...] = ()
    logits_slot_bytes: float = 0.0
    master_compute_bytes: float = 0.0
    worker_compute_bytes: float = 0.0

    def handoff_bytes(self, tokens: float) -> float:
        """Size of one request's KV cache when it moves from the prefill to the decode replica."""
        return self.kv_handoff_bytes_per_token * tokens + self.kv_handoff_bytes_per_request

    def blocks_in_order(self) -> list[BlockKind]:
        if not self.block_kinds:
            one = BlockKind(self.block_bytes, self.block_resident_bytes, self.kv_slot_block_bytes)
            return [one] * self.blocks
        named = dict(self.kinds)
        return [named[name] for name in self.block_kinds]


@dataclass(frozen=True)
class Workload:
    input_tokens: int
    output_tokens: int
    arrival_seconds: float
    requests: int
    context_tokens: int
    input_cv: float = 0.0
    output_cv: float = 0.0
    arrivals: str = "fixed"


@dataclass(frozen=True)
class Policy:
    min_tokens_per_second: float
    max_slots: int
    runtime: str
    topology: str
    allow_mixed: bool
    allow_idle: bool
    handover: bool = True
    seed: int = 0


@dataclass(frozen=True)
class Problem:
    model: ModelShape
    workload: Workload
    policy: Policy
    devices: tuple[Device, ...]
    default_link: Link
    pairs: tuple[tuple[str, str, Link], ...] = field(default=())

    @cached_property
    def _links(self) -> dict[tuple[str, str], Link]:
        both = {}
        for a, b, link in self.pairs:
            both[a, b] = link
            both[b, a] = link
        return both

    def link(self, a: str, b: str) -> Link:
        return self._links.get((a, b), self.default_link)

    def nic_bytes_per_second(self, name: str) -> float:
        """What the device's own port carries: the fastest link measured on it."""
        measured = [link.bytes_per_second for (a, _), link in self._links.items() if a == name]
        others = len(self.devices) - 1
        if len(measured) < others or not measured:
            measured.append(self.default_link.bytes_per_second)
        return max(measured)

    @cached_property
    def kind_of(self) -> tuple[int, ...]:
        """For each device the number of its kind; devices of one kind are interchangeable in every plan."""
        linked = {name for a, b, _ in self.pairs for name in (a, b)}
        numbers: dict[Any, int] = {}
        return tuple(
            numbers.setdefault(
                (device.signature, device.name if device.name in linked else None), len(numbers)
            )
            for device in self.devices
        )

    @cached_property
    def input_sha256(self) -> str:
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        return {
            "format": CLUSTER_FORMAT,
            "model": _model_dict(self.model),
            "workload": vars(self.workload).copy(),
            "policy": vars(self.policy).copy(),
            "links": {
                "default": vars(self.default_link).copy(),
                "pairs": [{"a": a, "b": b, **vars(link)} for a, b, link in self.pairs],
            },
            "devices": [_device_dict(device) for device in self.devices],
        }

    @classmethod
    def from_dict(cls, document: Any) -> Problem:
        """The problem in a cluster file; raises BadDocument naming every fault with its path."""
        problems: list[str] = []
        top = Fields(document, "", problems)
        raise_if_any(problems)
        top.format(CLUSTER_FORMAT)
        top.ignore("note")
        model = _read_model(top.inner("model"))
        workload = _read_workload(top.inner("workload"))
        policy = _read_policy(top.inner("policy"))
        if (count := len(top.items("devices"))) > MAX_DEVICES:
            raise BadDocument([f"devices: has {count:,} entries; this planner takes at most {MAX_DEVICES}"])
        devices = top.each("devices", _read_device, minimum=1)
        faults = [*doubles(devices), *([] if problems else unlike(devices))]
        for path, fault in faults:
            top.note(path, fault)
        default_link, pairs = _read_links(top.inner("links"), {device.name for device in devices})
        top.close()
        raise_if_any(problems)
        return cls(model, workload, policy, devices, default_link, pairs)


def _model_dict(model: ModelShape) -> dict[str, Any]:
    document = {key: value for key, value in vars(model).items() if value or key not in BUFFERS}
    block_kinds, kinds = document.pop("block_kinds"), document.pop("kinds")
    if block_kinds:
        document["block_kinds"] = list(block_kinds)
        document["kinds"] = {name: vars(kind).copy() for name, kind in kinds}
    return document


def _device_dict(device: Device) -> dict[str, Any]:
    document = {
        "name": device.name,
        "hardware": device.hardware,
        "kind": device.kind,
        "gpu_usable_bytes": device.gpu_usable_bytes,
        "ram_usable_bytes": device.ram_usable_bytes,
        "decode": _table_dict(device.decode, "micro_batch"),
        "prefill": _table_dict(device.prefill, "tokens"),
        "can_be_master": device.can_be_master,
    }
    for key in ("max_blocks", "main_pool"):
        if getattr(device, key) is not None:
            document[key] = getattr(device, key)
    return document


def _table_dict(table: LatencyTable, points: str) -> dict[str, Any]:
    cpu = table.cpu_block_seconds
    return {
        points: [int(point) if point == int(point) else point for point in table.points],
        "gpu_block_seconds": list(table.gpu_block_seconds),
        "cpu_block_seconds": None if cpu is None else list(cpu),
        "head_seconds": list(table.head_seconds),
    }


def _read_model(fields: Fields) -> ModelShape:
    blocks = fields.whole("blocks", minimum=1, maximum=MAX_BLOCKS)
    block_kinds, kinds = _read_kinds(fields, blocks)
    block_bytes, resident_bytes = _read_block(fields)
    model = ModelShape(
        name=fields.text("name", longest=LONGEST_MODEL_NAME),
        blocks=blocks,
        embedding_length=fields.whole("embedding_length", minimum=1),
        block_bytes=block_bytes,
        block_resident_bytes=resident_bytes,
        kv_slot_block_bytes=fields.number("kv_slot_block_bytes"),
        output_bytes=fields.number("output_bytes"),
        embedding_bytes=fields.number("embedding_bytes"),
        logits_buffer_bytes=fields.number("logits_buffer_bytes"),
        slot_overhead_bytes=fields.number("slot_overhead_bytes"),
        kv_handoff_bytes_per_token=fields.number("kv_handoff_bytes_per_token"),
        kv_handoff_bytes_per_request=fields.number("kv_handoff_bytes_per_request"),
        block_kinds=block_kinds,
        kinds=kinds,
        **{key: fields.number(key, default=0.0) for key in BUFFERS},
    )
    fields.close()
    return model


def _read_block(fields: Fields) -> tuple[float, float]:
    """Bytes of a block, and of the part that stays on the GPU."""
    before = len(fields.problems)
    whole, resident = fields.number("block_bytes", positive=True), fields.number("block_resident_bytes")
    if len(fields.problems) == before and fields.is_object and resident >= whole:
        fields.note("block_resident_bytes", "is not smaller than block_bytes")
    return whole, resident


def _read_kinds(fields: Fields, blocks: int) -> tuple[tuple[str, ...], tuple[tuple[str, BlockKind], ...]]:
    if not fields.has("block_kinds"):
        if fields.has("kinds"):
            fields.note("block_kinds", "is missing although kinds are given")
            fields.ignore("kinds")
        return (), ()
    before = len(fields.problems)
    names = fields.texts("block_kinds")
    if len(fields.problems) > before:  # what kinds there should be is not known
        fields.ignore("kinds")
        return (), ()
    if len(names) != blocks:
        fields.note(
            "block_kinds", f"has {counted(len(names), 'entry', 'entries')} for {counted(blocks, 'block')}"
        )
    inner = fields.inner("kinds")
    kinds = []
    for name in dict.fromkeys(names):
        one = inner.inner(name)
        kinds.append((name, BlockKind(*_read_block(one), one.number("kv_slot_block_bytes"))))
        one.close()
    inner.close()
    return names, tuple(kinds)


def _read_workload(fields: Fields) -> Workload:
    before = len(fields.problems)
    workload = Workload(
        input_tokens=fields.whole("input_tokens", minimum=1, maximum=10**7),
        output_tokens=fields.whole("output_tokens", minimum=1, maximum=10**7),
        arrival_seconds=fields.number("arrival_seconds", positive=True),
        requests=fields.whole("requests", minimum=1, maximum=10**6),
        context_tokens=fields.whole("context_tokens", minimum=1, maximum=10**8),
        input_cv=fields.number("input_cv", default=0.0),
        output_cv=fields.number("output_cv", default=0.0),
        arrivals=fields.choice("arrivals", ARRIVALS, default="fixed"),
    )
    needed = workload.input_tokens + workload.output_tokens
    if len(fields.problems) == before and workload.context_tokens < needed:
        fields.note("context_tokens", f"{workload.context_tokens} does not hold {needed} tokens")
    fields.close()
    return workload


def _read_policy(fields: Fields) -> Policy:
    policy = Policy(
        min_tokens_per_second=fields.number("min_tokens_per_second", positive=True),
        max_slots=fields.whole("max_slots", minimum=1, maximum=256),
        runtime=fields.choice("runtime", RUNTIMES),
        topology=fields.choice("topology", TOPOLOGIES),
        allow_mixed=fields.flag("allow_mixed"),
        allow_idle=fields.flag("allow_idle"),
        handover=fields.flag("handover", default=True),
        seed=fields.whole("seed", maximum=LARGEST_SEED),
    )
    fields.close()
    return policy


def _read_link(fields: Fields) -> Link:
    return Link(fields.number("bytes_per_second", positive=True), fields.number("latency_seconds"))


def _read_links(fields: Fields, names: set[str]) -> tuple[Link, tuple[tuple[str, str, Link], ...]]:
    inner = fields.inner("default")
    default = _read_link(inner)
    inner.close()
    pairs: list[tuple[str, str, Link]] = []
    if fields.has("pairs"):
        pairs = list(fields.each("pairs", lambda pair: _read_pair(pair, names)))
    fields.close()
    for path, fault in relinked([(a, b) for a, b, _ in pairs]):
        fields.note(path, fault)
    return default, tuple(pairs)


def _read_pair(fields: Fields, names: set[str]) -> tuple[str, str, Link]:
    a, b = fields.name("a"), fields.name("b")
    for key, name in (("a", a), ("b", b)):
        if name and name not in names:
            fields.note(key, f"{name!r} is not a device")
    if a and a == b:
        fields.note("b", f"{b!r} is linked to itself")
    link = _read_link(fields)
    fields.close()
    return a, b, link


def _read_device(fields: Fields) -> Device:
    device = Device(
        name=fields.name("name"),
        kind=fields.name("kind"),
        gpu_usable_bytes=fields.number("gpu_usable_bytes"),
        ram_usable_bytes=fields.number("ram_usable_bytes"),
        decode=_read_table(fields.inner("decode"), "micro_batch"),
        prefill=_read_table(fields.inner("prefill"), "tokens"),
        hardware=fields.text("hardware"),
        can_be_master=fields.flag("can_be_master", default=True),
        max_blocks=fields.whole("max_blocks") if fields.has("max_blocks") else None,
        main_pool=fields.choice("main_pool", MAIN_POOLS) if fields.has("main_pool") else None,
    )
    fields.close()
    return device


def _read_table(fields: Fields, points: str) -> LatencyTable:
    grid = fields.numbers(points, positive=True)
    if any(later <= earlier for earlier, later in zip(grid, grid[1:], strict=False)):
        fields.note(points, "does not rise")
    gpu = fields.numbers("gpu_block_seconds", positive=True)
    cpu = None
    if fields.raw("cpu_block_seconds") is not None:
        cpu = fields.numbers("cpu_block_seconds", positive=True)
    head = fields.numbers("head_seconds")
    for key, column in zip(COLUMNS, (gpu, cpu, head), strict=True):
        if column is not None and fields.has(key) and grid and len(column) != len(grid):
            fields.note(
                key,
                f"has {counted(len(column), 'entry', 'entries')} for {counted(len(grid), f'{points} point')}",
            )
    fields.close()
    return LatencyTable(grid, gpu, cpu, head)

"""Plan -> the command line and environment of every llama.cpp process of every replica."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from serving.core.placement import BadLaunch, HostFacts, Layout, Offload, Piece, lay_out

Role = Literal["prefill", "decode", "mixed"]

KEY_FILE = "api-key"
LOG_FILE = "log"
BATCH_TOKENS = (
    512  # a running prompt can be cancelled only between batches, and stalls every other slot until then
)
HEAD_STAYS_HOME = (
    "^output=CPU,^token_embd=CPU"  # the second pattern is for models whose head is the embedding
)

# An rpc-server that is told nothing dies of SIGPIPE when its master is killed in the middle of a token.
SURVIVE_SIGPIPE = ("/bin/sh", "-c", 'trap "" PIPE; exec "$@"', "e2llm-worker")


@dataclass(frozen=True)
class ModelFacts:
    """What the command line depends on in the model and in the workload it was planned for."""

    n_blocks: int
    context_tokens: int
    sliding_window: bool = False
    recurrent: bool = False
    pooling: str = ""  # of a model that makes embeddings
    offload: Offload = "whole"


@dataclass(frozen=True)
class ProcessCommand:
    """One process to start on one host."""

    device: str
    kind: Literal["master", "worker"]
    address: str
    port: int
    marker: str
    argv: tuple[str, ...]
    environment: dict[str, str]
    run_folder: str
    slot_folder: str
    key_path: str | None
    log_path: str


@dataclass(frozen=True)
class ExpectedBuffer:
    """A device that the load log must name, or the plan is not in force."""

    device: str
    log_name: str
    blocks: range


@dataclass(frozen=True)
class ReplicaCommands:
    """The processes of one replica, workers first, with what their load must look like."""

    index: int
    role: Role
    slots: int
    context_tokens: int
    handover: bool
    workers: tuple[ProcessCommand, ...]
    master: ProcessCommand
    pieces: tuple[Piece, ...]
    expected: tuple[ExpectedBuffer, ...]

    @property
    def processes(self) -> tuple[ProcessCommand, ...]:
        return (*self.workers, self.master)


class Options:
    """A command line built from the options that one build of llama-server knows."""

    def __init__(self, host: HostFacts) -> None:
        self.host = host
        self.argv: list[str] = [host.server_path]

    def require(self, names: Sequence[str], *values: str) -> None:
        if not self.add_known(names, *values):
            raise BadLaunch(
                f"{self.host.device}: this llama-server has no option {names[0]}, which the plan needs; "
                "install a newer build of llama.cpp there"
            )

    def add_known(self, names: Sequence[str], *values: str) -> bool:
        known = next((name for name in names if name in self.host.flags), None)
        if known is not None:
            self.argv += [known, *values]
        return known is not None


def replica_commands(
    plan: Mapping[str, Any], model: ModelFacts, hosts: Mapping[str, HostFacts]
) -> tuple[ReplicaCommands, ...]:
    """Every replica of an `e2llm-plan/1` document as processes; `hosts` is keyed by its device names."""
    handover = plan["mode"] == "disaggregated" and not model.recurrent
    check_addresses(plan, hosts)
    return tuple(
        one_replica(index, replica, model, hosts, handover) for index, replica in enumerate(plan["replicas"])
    )


def check_addresses(plan: Mapping[str, Any], hosts: Mapping[str, HostFacts]) -> None:
    taken: dict[str, str] = {}
    for replica in plan["replicas"]:
        for stage in replica["stages"]:
            device = stage["device"]
            if device not in hosts:
                raise BadLaunch(f"the plan uses {device}, which is not a known host")
            other = taken.setdefault(hosts[device].endpoint, device)
            if other != device:
                raise BadLaunch(f"{device} and {other} would both listen on {hosts[device].endpoint}")


def one_replica(
    index: int, replica: Mapping[str, Any], model: ModelFacts, hosts: Mapping[str, HostFacts], handover: bool
) -> ReplicaCommands:
    if model.pooling and replica["role"] != "mixed":
        raise BadLaunch(
            "This model makes embeddings: there is nothing to decode, so its replicas cannot be divided into "
            "prefill and decode. Serve it with mixed replicas."
        )
    layout = lay_out(replica["stages"], hosts, model.offload, model.n_blocks)
    options = Options(layout.master)
    key_path = f"{layout.master.run_folder}/{KEY_FILE}"
    add_identity(options, key_path)
    add_placement(options, layout)
    add_slots(options, replica["slots"], model)
    add_handover(options, replica["role"], model, handover)
    return ReplicaCommands(
        index=index,
        role=replica["role"],
        slots=replica["slots"],
        context_tokens=model.context_tokens,
        handover=handover,
        workers=tuple(worker_command(worker, layout.exposed(worker)) for worker in layout.workers),
        master=process(layout.master, "master", tuple(options.argv), key_path),
        pieces=layout.pieces,
        expected=expected_buffers(layout),
    )


def worker_command(worker: HostFacts, devices: Sequence[str]) -> ProcessCommand:
    argv = (
        *SURVIVE_SIGPIPE,
        worker.rpc_server_path,
        *("-H", worker.address, "-p", str(worker.port), "-d", ",".join(devices), "-t", str(worker.threads)),
    )
    return process(worker, "worker", argv, key_path=None)


def process(
    host: HostFacts, kind: Literal["master", "worker"], argv: tuple[str, ...], key_path: str | None
) -> ProcessCommand:
    return ProcessCommand(
        device=host.device,
        kind=kind,
        address=host.address,
        port=host.port,
        marker=host.marker,
        argv=argv,
        # Without GGML_NO_BACKTRACE an abort first attaches a debugger and keeps the port for seconds.
        environment={"E2LLM_MARKER": host.marker, "GGML_NO_BACKTRACE": "1"},
        run_folder=host.run_folder,
        slot_folder=host.slot_folder,
        key_path=key_path,
        log_path=f"{host.run_folder}/{LOG_FILE}",
    )


def add_identity(options: Options, key_path: str) -> None:
    host = options.host
    options.require(["--model"], host.model_path)
    options.require(["--alias"], host.marker)
    options.require(["--host"], host.address)
    options.require(["--port"], str(host.port))
    options.require(["--api-key-file"], key_path)
    options.require(["--threads"], str(host.threads))
    options.add_known(["--offline"])
    options.add_known(["--cors-origins"], "localhost")
    options.add_known(["--no-cors-credentials"])
    options.add_known(["--metrics"])
    options.add_known(
        ["--log-verbosity", "--verbosity"], "4"
    )  # the level that prints where every buffer went


def add_placement(options: Options, layout: Layout) -> None:
    options.add_known(["--fit"], "off")  # else llama.cpp moves blocks away from where the plan put them
    if layout.workers:
        # Before --device: the names RPC0, RPC1, ... exist only once --rpc has been read.
        options.require(["--rpc"], ",".join(worker.endpoint for worker in layout.workers))
    devices, shares = layout.offloaded_shares()
    if devices:
        options.require(["--device"], ",".join(devices))
        options.require(["--n-gpu-layers", "--gpu-layers"], str(sum(shares)))
        options.require(["--tensor-split"], ",".join(map(str, shares)))
    else:
        options.require(["--device"], "none")
    overrides = tensor_overrides(layout)
    if overrides:
        options.require(["--override-tensor"], ",".join(overrides))


def tensor_overrides(layout: Layout) -> list[str]:
    overrides = []
    if layout.workers and not layout.master_gpus:
        # On a worker the head would send a megabyte of logits over the link for every token.
        overrides.append(HEAD_STAYS_HOME)
    for piece in layout.pieces:
        if piece.experts_in_ram:
            numbers = "|".join(str(number) for number in piece.block_range[: piece.experts_in_ram])
            overrides.append(rf"blk\.({numbers})\.ffn_.*_exps={layout.buffer_name(piece.device, 'CPU')}")
    return overrides


def add_slots(options: Options, slots: int, model: ModelFacts) -> None:
    options.require(["--parallel"], str(slots))
    options.require(["--ctx-size"], str(slots * model.context_tokens))
    if model.pooling:
        # Every token of an embedding looks at all the others, so a text has to lie in one batch.
        options.require(["--batch-size"], str(model.context_tokens))
        options.require(["--ubatch-size"], str(model.context_tokens))
        options.require(["--embeddings", "--embedding"])
        options.require(["--pooling"], model.pooling)
    else:
        options.require(["--batch-size"], str(BATCH_TOKENS))
    options.add_known(["--flash-attn"], "on")
    options.add_known(
        ["--cache-ram"], "0"
    )  # the default wipes an idle slot as soon as another request starts
    options.add_known(["--ctx-checkpoints"], "0")


def add_handover(options: Options, role: Role, model: ModelFacts, handover: bool) -> None:
    add_unified = options.require if handover else options.add_known
    add_unified(["--kv-unified"])  # one KV stream on both sides, whatever their slots: else restore refuses
    if not handover:
        options.add_known(["--no-ui", "--no-webui"])
        return
    options.require(["--slot-save-path"], options.host.slot_folder)
    if model.sliding_window:
        options.require(["--swa-full"])  # without it a restore answers 200 and the prompt is computed again
    if role == "prefill":
        options.require(
            ["--path"], options.host.slot_folder
        )  # served behind the key; only while the UI stays on
    else:
        options.add_known(["--no-ui", "--no-webui"])


def expected_buffers(layout: Layout) -> tuple[ExpectedBuffer, ...]:
    return tuple(
        ExpectedBuffer(piece.device, layout.buffer_name(piece.device, piece.backend), piece.block_range)
        for piece in layout.pieces
        if piece.blocks
    )

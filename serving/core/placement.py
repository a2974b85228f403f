"""Which blocks of the model run on which llama.cpp device of a replica."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import AddressValueError, IPv4Address
from typing import Any, Literal

MAX_WORKERS = 16  # llama.cpp's own limit of RPC servers per master

Offload = Literal["whole", "experts"]


class BadLaunch(ValueError):
    """The plan and the facts of the hosts do not give a replica that can be started."""


@dataclass(frozen=True)
class Gpu:
    """A device name as llama.cpp prints it, and the memory that decides its share of the host's blocks."""

    name: str
    free_bytes: int


@dataclass(frozen=True)
class HostFacts:
    """What has to be known of one device of the plan before a process can be started on it.

    `port` is the HTTP port of a master and the RPC port of a worker. `flags` are the option names that
    this build of llama-server prints in its help.
    """

    device: str
    address: str
    port: int
    gpus: tuple[Gpu, ...]
    threads: int
    server_path: str
    rpc_server_path: str
    model_path: str
    flags: frozenset[str]
    marker: str
    run_folder: str
    slot_folder: str

    def __post_init__(self) -> None:
        try:
            unspecified = IPv4Address(self.address).is_unspecified
        except AddressValueError as error:
            raise BadLaunch(
                f"{self.device}: {self.address!r} is not an IPv4 address; llama.cpp's RPC takes no host name"
            ) from error
        if unspecified:
            raise BadLaunch(
                f"{self.device}: {self.address} would listen on every network; give the cluster address"
            )
        if not 1 <= self.port <= 65535:
            raise BadLaunch(f"{self.device}: {self.port} is not a port")
        for path in (self.model_path, self.run_folder, self.slot_folder):
            if not path.startswith("/") or "\0" in path or "\n" in path:
                raise BadLaunch(f"{self.device}: {path!r} is not an absolute path")

    @property
    def endpoint(self) -> str:
        return f"{self.address}:{self.port}"


@dataclass(frozen=True)
class Piece:
    """Neighbouring blocks on one llama.cpp device; `experts_in_ram` of them keep their experts in RAM."""

    device: str
    backend: str
    master: bool
    blocks: int
    first_block: int = 0
    experts_in_ram: int = 0

    @property
    def block_range(self) -> range:
        return range(self.first_block, self.first_block + self.blocks)

    @property
    def offloaded(self) -> bool:
        """Whether llama.cpp counts these blocks into -ngl: all but those on the master's own CPU."""
        return not (self.master and self.backend == "CPU")


def share_blocks(blocks: int, gpus: Sequence[Gpu]) -> list[int]:
    """Blocks per GPU in proportion to free memory, by largest remainder, so that the counts add up."""
    total = sum(gpu.free_bytes for gpu in gpus)
    exact = [blocks * gpu.free_bytes / total if total else blocks / len(gpus) for gpu in gpus]
    shares = [int(value) for value in exact]
    by_remainder = sorted(range(len(gpus)), key=lambda index: shares[index] - exact[index])
    for index in by_remainder[: blocks - sum(shares)]:
        shares[index] += 1
    return shares


def host_pieces(stage: Mapping[str, Any], host: HostFacts, offload: Offload) -> list[Piece]:
    """The pieces of one stage, its GPUs before its CPU; a host without a GPU runs everything on its CPU."""
    gpu_blocks, cpu_blocks, master = stage["gpu_blocks"], stage["cpu_blocks"], stage["master"]
    if not host.gpus:
        return [Piece(host.device, "CPU", master, gpu_blocks + cpu_blocks)]
    experts = cpu_blocks if offload == "experts" else 0
    pieces = []
    left = experts
    for gpu, blocks in zip(host.gpus, share_blocks(gpu_blocks + experts, host.gpus), strict=True):
        in_ram = min(left, blocks)
        left -= in_ram
        pieces.append(Piece(host.device, gpu.name, master, blocks, experts_in_ram=in_ram))
    if offload == "whole":
        pieces.append(Piece(host.device, "CPU", master, cpu_blocks))
    return [piece for piece in pieces if piece.blocks or (master and piece.offloaded)]


@dataclass(frozen=True)
class Layout:
    """One replica on its hosts; pieces in the order llama.cpp walks them: master's CPU, workers, its GPUs."""

    master: HostFacts
    workers: tuple[HostFacts, ...]
    pieces: tuple[Piece, ...]

    @property
    def master_gpus(self) -> list[Piece]:
        return [piece for piece in self.pieces if piece.master and piece.offloaded]

    def exposed(self, worker: HostFacts) -> list[str]:
        """The devices a worker offers, in pipeline order; its CPU as well when experts are sent there."""
        own = [piece for piece in self.pieces if piece.device == worker.device]
        names = [piece.backend for piece in own]
        if any(piece.experts_in_ram for piece in own):
            names.append("CPU")
        return names

    def buffer_name(self, device: str, backend: str) -> str:
        """A buffer as the load log names it; a worker's is counted inside its server, unlike in --device."""
        if device == self.master.device:
            return backend
        worker = next(worker for worker in self.workers if worker.device == device)
        return f"RPC{self.exposed(worker).index(backend)}[{worker.endpoint}]"

    def offloaded_shares(self) -> tuple[list[str], list[int]]:
        """Names for --device and block counts for --tensor-split; --n-gpu-layers must be their sum.

        llama.cpp deals out the output layer as one more block, so the last device gets one more.
        """
        blocks = {(piece.device, piece.backend): piece.blocks for piece in self.pieces if piece.offloaded}
        remote = [(worker.device, backend) for worker in self.workers for backend in self.exposed(worker)]
        devices = [f"RPC{index}" for index in range(len(remote))] + [
            piece.backend for piece in self.master_gpus
        ]
        shares = [blocks.get(key, 0) for key in remote] + [piece.blocks for piece in self.master_gpus]
        if shares:
            last = max(index for index, share in enumerate(shares) if share or self.master_gpus)
            shares[last] += 1
        return devices, shares


def lay_out(
    stages: Sequence[Mapping[str, Any]], hosts: Mapping[str, HostFacts], offload: Offload, n_blocks: int
) -> Layout:
    masters = [stage for stage in stages if stage["master"]]
    others = [stage for stage in stages if not stage["master"]]
    if len(masters) != 1:
        raise BadLaunch(f"a replica needs exactly one master, this one has {len(masters)}")
    if len(others) > MAX_WORKERS:
        raise BadLaunch(f"{len(others)} workers in one replica; llama.cpp takes at most {MAX_WORKERS}")
    own = host_pieces(masters[0], hosts[masters[0]["device"]], offload)
    remote = [piece for stage in others for piece in host_pieces(stage, hosts[stage["device"]], offload)]
    pieces = (
        [piece for piece in own if not piece.offloaded] + remote + [piece for piece in own if piece.offloaded]
    )
    placed = sum(piece.blocks for piece in pieces)
    if placed != n_blocks:
        raise BadLaunch(f"the plan places {placed} blocks, the model has {n_blocks}")
    used = {piece.device for piece in remote}
    workers = tuple(hosts[stage["device"]] for stage in others if stage["device"] in used)
    return Layout(hosts[masters[0]["device"]], workers, number_blocks(pieces))


def number_blocks(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    numbered = []
    first_block = 0
    for piece in pieces:
        numbered.append(replace(piece, first_block=first_block))
        first_block += piece.blocks
    return tuple(numbered)

"""Rows of the inventory -> what the command lines of a deployment depend on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inventory.core.model_shape import ModelShape
from inventory.models import Device, LanguageModel, ModelFile
from serving.core.commands import ModelFacts, ReplicaCommands, one_replica
from serving.core.placement import BadLaunch, Gpu, HostFacts
from serving.models import Deployment, ManagedProcess, Replica

SHARED_MEMORY = "/dev/shm"  # noqa: S108 - the host's tmpfs; the folder in it is made with mode 700
LOOPBACK = "127.0.0.1"


def model_facts(deployment: Deployment) -> ModelFacts:
    shape = ModelShape.from_dict(deployment.model.shape)
    return ModelFacts(
        n_blocks=deployment.cluster["model"]["blocks"],
        context_tokens=deployment.context_tokens,
        sliding_window=shape.has_windows,
        recurrent=shape.is_recurrent,
        pooling=shape.pooling,
        offload="experts" if deployment.cluster["model"]["block_resident_bytes"] else "whole",
    )


def plan_devices(plan: dict[str, Any]) -> list[str]:
    """Names of the devices that the plan uses, each once, in the plan's order."""
    stages = [stage for replica in plan["replicas"] for stage in replica["stages"]]
    return list(dict.fromkeys(stage["device"] for stage in stages))


def devices_by_name(plan: dict[str, Any], device_ids: dict[str, int]) -> dict[str, Device]:
    """The plan's names -> devices, by the ids frozen with the plan run, else by equal names."""
    found = {}
    for name in plan_devices(plan):
        chosen = {"pk": device_ids[name]} if name in device_ids else {"name": name}
        device = Device.objects.select_related("identity").filter(**chosen).first()
        if device is None:
            raise BadLaunch(
                f"The plan uses {name}, which is not among the devices. Add it under that name, or make a new plan."
            )
        found[name] = device
    return found


def devices_of(deployment: Deployment) -> dict[str, Device]:
    """The plan's names -> the devices that a deployment of it uses."""
    ids = dict(deployment.plan_run.device_ids) if deployment.plan_run else {}
    return devices_by_name(deployment.plan, ids)


def is_master_of(deployment: Deployment, replica: Replica, device: Device) -> bool:
    """Whether the plan puts the replica's llama-server on this device."""
    ids = dict(deployment.plan_run.device_ids) if deployment.plan_run else {}
    stages = deployment.plan["replicas"][replica.index]["stages"]
    master = next(stage["device"] for stage in stages if stage["master"])
    return ids[master] == device.pk if master in ids else master == device.name


def model_file(deployment: Deployment, device: Device) -> ModelFile:
    files = ModelFile.objects.filter(model=deployment.model, device=device).select_related("model")
    file = files.order_by("-seen_at").first()
    if file is None:
        raise BadLaunch(
            f"{device} is to be a master but has no copy of {deployment.model}. "
            "Copy the model there on the model's page, then deploy again."
        )
    return file


def first_file_bytes(file: ModelFile) -> int:
    """Size of the file at the path; 0 when the model is split over several and only their sum is known."""
    return file.size_bytes if file.model.shape["shards"] <= 1 else 0


def address_of(device: Device) -> str:
    """Where the others reach it; this machine alone needs no network."""
    if device.address is None and device.connection != Device.Connections.LOCAL:
        raise BadLaunch(
            f"{device} has no cluster address. Probe it again, or enter its IPv4 address on its page."
        )
    return device.address or LOOPBACK


def run_folder(home: str, marker: str) -> str:
    return f"{home}/.cache/e2llm/{marker}"


def slot_folder(home: str, marker: str, *, has_shared_memory: bool) -> str:
    """In memory where the host has a tmpfs: a hand-over then costs no disk."""
    return f"{SHARED_MEMORY}/{marker}" if has_shared_memory else f"{run_folder(home, marker)}/slots"


def host_facts(name: str, device: Device, process: ManagedProcess, model_path: str) -> HostFacts:
    """What `process`, whose port and folders are chosen, needs to know of its device."""
    assert process.port is not None, "ports are chosen before command lines are made"
    is_master = process.kind == ManagedProcess.Kinds.MASTER
    program = "llama-server" if is_master else "ggml-rpc-server"
    if not device.llama.get("server_path" if is_master else "rpc_server_path"):
        raise BadLaunch(f"{device} has no {program}. Install it there and probe the device again.")
    return HostFacts(
        device=name,
        address=address_of(device),
        port=process.port,
        gpus=(Gpu(gpu["name"], gpu["free_bytes"]),) if (gpu := device.gpu) else (),
        threads=max(1, device.hardware["cores"] - 1),
        server_path=device.llama.get("server_path") or "",
        rpc_server_path=device.llama.get("rpc_server_path") or "",
        model_path=model_path or "/",
        flags=frozenset(device.llama["flags"]),
        marker=process.marker,
        run_folder=process.run_folder,
        slot_folder=process.slot_folder,
    )


def commands_of(
    deployment: Deployment,
    replica: Replica,
    devices: Mapping[str, Device],
    processes: Mapping[str, ManagedProcess],
) -> ReplicaCommands:
    """The command lines of one replica, whose processes have their ports and folders."""
    hosts = {}
    for name, process in processes.items():
        is_master = process.kind == ManagedProcess.Kinds.MASTER
        path = model_file(deployment, devices[name]).path if is_master else ""
        hosts[name] = host_facts(name, devices[name], process, path)
    plan = deployment.plan["replicas"][replica.index]
    return one_replica(replica.index, plan, model_facts(deployment), hosts, deployment.handover_on)


def refuse_unequal_builds(label: str, devices: list[Device]) -> None:
    """A worker of another RPC version is left out in silence by old masters and kills new ones."""
    protocols = {str(device.llama.get("rpc_protocol") or "") for device in devices} - {""}
    if len(protocols) > 1:
        listed = ", ".join(
            f"{device} {device.llama.get('rpc_protocol')} ({device.llama.get('version', 'unknown build')})"
            for device in devices
        )
        raise BadLaunch(
            f"{label} spans devices with different RPC versions: {listed}. "
            "Install the same build of llama.cpp on all of them and probe them again."
        )


def refuse_lost_gpus(deployment: Deployment, devices: Mapping[str, Device]) -> None:
    """Blocks that were planned for a GPU would run on the CPU without a word when it is gone."""
    planned = {entry["name"]: entry.get("main_pool") for entry in deployment.cluster["devices"]}
    for name, device in devices.items():
        if planned.get(name) == "gpu" and device.main_pool != "gpu":
            raise BadLaunch(
                f"{device} had a GPU when the plan was made, and llama.cpp finds none there now. "
                "See what became of it and probe the device again, or make a new plan."
            )


def is_recurrent(model: LanguageModel) -> bool:
    """Recurrent state is not in llama.cpp's slot files, so such a model is never handed over."""
    return ModelShape.from_dict(model.shape).is_recurrent

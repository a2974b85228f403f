"""From the sections of a probe to what a device has and how much of its memory a plan may use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from inventory.core import parsers
from inventory.core.gpus import disagrees, is_unified, same_card, shares_memory, system_cards
from inventory.core.parsers import MIB, Accelerator, Section, text_of
from inventory.core.quantities import seconds_text

GIB = 1024 * MIB
GPU_RESERVE_FRACTION, GPU_RESERVE_BYTES = 0.05, 512 * MIB
RAM_RESERVE_FRACTION, RAM_RESERVE_BYTES = 0.10, GIB
METAL_FRACTION_SMALL, METAL_FRACTION_LARGE, METAL_LARGE_BYTES = 2 / 3, 0.75, 36 * GIB


@dataclass(frozen=True)
class UsableMemory:
    """Bytes a plan may use in the main and in the second pool, and how they were worked out."""

    gpu_bytes: int
    ram_bytes: int
    text: str


def hardware_of(found: dict[str, Section]) -> dict[str, Any]:
    """Everything the probe learned about the machine; `sources` names where each number was read."""
    is_mac = text_of(found, "uname").startswith("Darwin")
    facts = _mac(found) if is_mac else _linux(found)
    listing = text_of(found, "llama_devices")
    listed = parsers.list_devices(listing)
    gpus = [gpu for gpu in listed if gpu.total_bytes]  # BLAS and other helpers have no memory of their own
    seen_by_system = system_cards(found)
    facts["gpus"] = [gpu.to_dict() | {"shares_memory": shares_memory(gpu, listing)} for gpu in gpus]
    facts["system_gpus"] = [card.to_dict() for card in seen_by_system]
    facts["is_unified"] = any(gpu["shares_memory"] for gpu in facts["gpus"][:1])
    facts["board"] = text_of(found, "board").strip()
    facts["addresses"] = parsers.addresses(text_of(found, "addresses"))
    facts["disk_free_bytes"] = parsers.free_disk(text_of(found, "disk"))
    facts["on_battery"] = parsers.on_battery(text_of(found, "power"))
    facts["may_sleep"], facts["sleep_text"] = parsers.sleep_setting(text_of(found, "sleep"))
    facts["tools"] = text_of(found, "tools").split()
    facts["home"] = text_of(found, "home").strip()
    facts["has_our_processes"] = bool(text_of(found, "ours").strip())
    facts["our_ram_bytes"] = parsers.held_by(text_of(found, "ours"))
    facts["driver"] = (
        text_of(found, "driver").strip().splitlines()[0] if text_of(found, "driver").strip() else ""
    )
    facts["sources"]["gpus"] = "llama-server --list-devices"
    facts["warnings"] = _warnings(gpus, seen_by_system, facts)
    return facts


def main_gpu(hardware: dict[str, Any], chosen: str = "") -> dict[str, Any] | None:
    """The GPU that plans use: the one chosen by name, else the first that llama.cpp lists; None without a GPU."""
    gpus: list[dict[str, Any]] = hardware.get("gpus", [])
    return next((gpu for gpu in gpus if gpu["name"] == chosen), gpus[0] if gpus else None)


def usable_memory(hardware: dict[str, Any], chosen_gpu: str = "") -> UsableMemory:
    """A CPU-only or unified-memory machine is one pool; a machine with its own GPU memory has RAM beside it."""
    ram, ram_text = _ram_usable(hardware)
    gpu = main_gpu(hardware, chosen_gpu)
    if gpu is None:
        return UsableMemory(ram, 0, f"no GPU: one pool of RAM, {ram_text}")
    if is_unified(hardware, gpu):
        limit, source = _gpu_limit(hardware, gpu)
        usable = min(limit, max(ram, 0)) if hardware["memory_total_bytes"] else limit
        return UsableMemory(
            usable,
            0,
            f"unified memory: the smaller of the GPU's limit, {_gb(limit)} ({source}), and {ram_text}",
        )
    total, source = _smallest_total(hardware, gpu)
    reserve = max(int(total * GPU_RESERVE_FRACTION), GPU_RESERVE_BYTES)
    usable = total - reserve
    free = gpu["free_bytes"]
    name = gpu["name"] if len(hardware["gpus"]) > 1 else "GPU"
    text = f"{name}: {_gb(total)} ({source}) less {_gb(reserve)} in reserve"
    if hardware["has_our_processes"]:
        text += ", whatever was free at the probe: something of ours ran there"
    elif free is not None and free < usable:
        usable, text = (
            free,
            f"{name}: {_gb(free)} free at the probe, other programs hold the rest of {_gb(total)}",
        )
    return UsableMemory(max(usable, 0), ram, f"{text}; RAM beside it: {ram_text}")


def _linux(found: dict[str, Section]) -> dict[str, Any]:
    memory = parsers.meminfo(text_of(found, "meminfo"))
    release = parsers.key_values(text_of(found, "os_release"), "=")
    model, features = parsers.cpuinfo(text_of(found, "cpuinfo"))
    limit = _cgroup_limit(text_of(found, "cgroup"))
    total = memory.get("MemTotal", 0)
    source = "/proc/meminfo"
    if limit is not None and limit < total:
        total, source = limit, "cgroup memory limit"
    cores = text_of(found, "cores").strip()
    return {
        "os": release.get("PRETTY_NAME") or text_of(found, "uname"),
        "kernel": text_of(found, "uname"),
        "cpu_model": model or text_of(found, "board").strip() or text_of(found, "uname").split(" ")[-1],
        "cpu_features": features,
        "cores": int(cores) if cores.isdigit() else 1,
        "memory_total_bytes": total,
        "memory_available_bytes": min(memory.get("MemAvailable", memory.get("MemFree", 0)), total),
        "metal_limit_bytes": None,
        "boot_id": text_of(found, "boot_id").strip(),
        "sources": {"memory": source, "cores": "nproc", "boot_id": "/proc/sys/kernel/random/boot_id"},
    }


def _mac(found: dict[str, Section]) -> dict[str, Any]:
    values = parsers.sysctl(text_of(found, "sysctl"))
    system = parsers.key_values(text_of(found, "sw_vers"), ":")
    total = int(values.get("hw.memsize", "0"))
    wired = int(values.get("iogpu.wired_limit_mb", "0")) * MIB
    fraction = METAL_FRACTION_LARGE if total > METAL_LARGE_BYTES else METAL_FRACTION_SMALL
    return {
        "os": f"{system.get('ProductName', 'macOS')} {system.get('ProductVersion', '')}".strip(),
        "kernel": text_of(found, "uname"),
        "cpu_model": values.get("machdep.cpu.brand_string", ""),
        "cpu_features": [],
        "cores": int(values.get("hw.physicalcpu", values.get("hw.ncpu", "1"))),
        "memory_total_bytes": total,
        "memory_available_bytes": parsers.vm_stat_available(text_of(found, "vm_stat")) or 0,
        "metal_limit_bytes": wired or int(total * fraction),
        "boot_id": values.get("kern.bootsessionuuid", ""),
        "sources": {
            "memory": "sysctl hw.memsize, vm_stat",
            "cores": "sysctl hw.physicalcpu",
            "boot_id": "sysctl kern.bootsessionuuid",
            "metal_limit": "sysctl iogpu.wired_limit_mb" if wired else "macOS default share of memory",
        },
    }


def _gpu_limit(hardware: dict[str, Any], gpu: dict[str, Any]) -> tuple[int, str]:
    """What the GPU of a unified memory may take: the smaller of what macOS and llama.cpp say."""
    listed = (gpu["total_bytes"], gpu["source"])
    metal = hardware.get("metal_limit_bytes")
    return min((metal, hardware["sources"]["metal_limit"]), listed) if metal else listed


def _cgroup_limit(text: str) -> int | None:
    limits = [int(line) for line in text.split() if line.isdigit()]
    return min(limits) if limits else None


def _ram_usable(hardware: dict[str, Any]) -> tuple[int, str]:
    """What our own processes hold is planned with; the rest is what was available at the probe."""
    total = hardware["memory_total_bytes"]
    reserve = max(int(total * RAM_RESERVE_FRACTION), RAM_RESERVE_BYTES)
    usable, text = (
        total - reserve,
        f"{_gb(total)} of RAM ({hardware['sources']['memory']}) less {_gb(reserve)} in reserve",
    )
    available, ours = hardware["memory_available_bytes"], hardware.get("our_ram_bytes", 0)
    if available + ours - reserve // 2 < usable:
        usable = available + ours - reserve // 2
        held = f" and {_gb(ours)} that what we run there holds," if ours else ""
        text = f"{_gb(available)} of RAM available at the probe{held} less {_gb(reserve // 2)} in reserve"
    return max(usable, 0), text


def _smallest_total(hardware: dict[str, Any], gpu: dict[str, Any]) -> tuple[int, str]:
    """Where sources disagree the smaller number is the safer one."""
    card = same_card(gpu, hardware["system_gpus"])
    best = min([gpu, *([card] if card else [])], key=lambda one: one["total_bytes"])
    return best["total_bytes"], best["source"]


def _disagreements(facts: dict[str, Any]) -> list[str]:
    found = []
    for gpu in facts["gpus"]:
        card = same_card(gpu, facts["system_gpus"])
        if card and disagrees(gpu, card):
            found.append(
                f"{gpu['name']}: llama.cpp says {_gb(gpu['total_bytes'])}, {card['source']} says "
                f"{_gb(card['total_bytes'])}; the smaller is used"
            )
        metal = facts["metal_limit_bytes"]
        if metal and is_unified(facts, gpu) and disagrees(gpu, {"total_bytes": metal}):
            found.append(
                f"{gpu['name']}: llama.cpp may take {_gb(gpu['total_bytes'])}, "
                f"{facts['sources']['metal_limit']} says {_gb(metal)}; the smaller is used"
            )
    return found


def _warnings(gpus: list[Accelerator], cards: list[Accelerator], facts: dict[str, Any]) -> list[str]:
    found = _disagreements(facts)
    if cards and not gpus:
        found.append(
            f"{cards[0].source} sees {cards[0].description}, but this llama.cpp build does not use it"
        )
    if len(gpus) > 1:
        found.append(f"{len(gpus)} GPUs found; plans use one of them, which an admin chooses under Settings")
    if facts["on_battery"]:
        found.append("runs on battery: speeds measured now may not hold on mains power")
    if facts["may_sleep"]:
        found.append(f"it {facts['sleep_text']}: what runs on it stops then, so switch that off there")
    return found


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB"


def clock_skew(stamp: int, asked: float, answered: float) -> float:
    """Seconds by which a clock that shows whole seconds is off ours for sure; 0 within its resolution and the way."""
    least, most = stamp - answered, stamp + 1 - asked
    return least if least > 0 else min(most, 0.0)


def clock_text(skew_seconds: float) -> str:
    if abs(skew_seconds) < 1:
        return "in step with ours"
    return f"{seconds_text(abs(skew_seconds))} {'ahead of' if skew_seconds > 0 else 'behind'} ours"


def spare_threads(hardware: dict[str, Any]) -> int:
    """Threads for llama.cpp: all cores but one, since a busy host with all of them taken collapses."""
    return max(1, int(hardware["cores"]) - 1)

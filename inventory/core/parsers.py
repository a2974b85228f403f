"""Turns what probe commands print into numbers; every size in bytes, every text as found on the host."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

KIB, MIB = 1024, 1024 * 1024
CPU_FEATURES = (
    "avx",
    "avx2",
    "avx512f",
    "avx512_bf16",
    "amx_tile",
    "avx_vnni",
    "neon",
    "asimd",
    "sve",
    "i8mm",
)
LISTENING = "0A"


@dataclass(frozen=True)
class Section:
    """What one command of the probe printed, and its exit status."""

    text: str
    status: int


@dataclass(frozen=True)
class Accelerator:
    """A device as `llama-server --list-devices` or the vendor's tool names it."""

    name: str
    description: str
    total_bytes: int | None
    free_bytes: int | None
    source: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def sections(output: str, marker: str) -> dict[str, Section]:
    """Cut the output between our own markers, so that banners and start-up files of the host do not matter."""
    begin = re.compile(rf"^{re.escape(marker)} begin (\w+)$")
    end = re.compile(rf"^{re.escape(marker)} end (\w+) (\d+)$")
    found: dict[str, Section] = {}
    name, lines = "", list[str]()
    for line in output.splitlines():
        if started := begin.match(line):
            name, lines = started[1], []
        elif (ended := end.match(line)) and ended[1] == name:
            found[name] = Section("\n".join(lines).strip("\n"), int(ended[2]))
            name = ""
        elif name:
            lines.append(line)
    return found


def text_of(found: dict[str, Section], name: str) -> str:
    """What a command printed, empty when it failed or was not run."""
    section = found.get(name)
    return section.text if section is not None and section.status == 0 else ""


def meminfo(text: str) -> dict[str, int]:
    """`/proc/meminfo` in bytes, by the kernel's own names."""
    pairs = re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)
    return {name: int(value) * KIB for name, value in pairs}


def cpuinfo(text: str) -> tuple[str, list[str]]:
    """Model name and the features that matter to llama.cpp, from `/proc/cpuinfo`."""
    model = re.search(r"^(?:model name|Model|Hardware)\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
    present = set(flags[1].split()) if flags else set()
    return (model[1].strip() if model else ""), [name for name in CPU_FEATURES if name in present]


def sysctl(text: str) -> dict[str, str]:
    """`sysctl name...` on macOS: `name: value` lines."""
    return dict(re.findall(r"^([\w.]+): (.*)$", text, re.MULTILINE))


def vm_stat_available(text: str) -> int | None:
    """Bytes macOS can give to a new program: free, inactive, speculative and purgeable pages."""
    page = re.search(r"page size of (\d+) bytes", text)
    if page is None:
        return None
    pages = dict(re.findall(r"^Pages ([\w ]+):\s+(\d+)\.", text, re.MULTILINE))
    kinds = ("free", "inactive", "speculative", "purgeable")
    return int(page[1]) * sum(int(pages.get(kind, "0")) for kind in kinds)


def key_values(text: str, separator: str) -> dict[str, str]:
    """`KEY=value` (os-release) or `Key: value` (sw_vers) lines, without quotes."""
    pairs = (line.split(separator, 1) for line in text.splitlines() if separator in line)
    return {key.strip(): value.strip().strip("\"'") for key, value in pairs}


def list_devices(text: str) -> list[Accelerator]:
    """`llama-server --list-devices`: `CUDA0: NVIDIA GeForce RTX 3060 (12045 MiB, 11811 MiB free)`."""
    found = re.findall(r"^\s*(\w+): (.*?) \((\d+) MiB, (\d+) MiB free\)\s*$", text, re.MULTILINE)
    return [
        Accelerator(name, description, int(total) * MIB, int(free) * MIB, "llama-server --list-devices")
        for name, description, total, free in found
    ]


def nvidia_smi(text: str) -> list[Accelerator]:
    """`nvidia-smi --query-gpu=name,memory.total,memory.free --format=csv,noheader,nounits`; MiB or a refusal."""
    cards = []
    for index, line in enumerate(text.splitlines()):
        parts = [part.strip() for part in line.split(",")]
        if len(parts) >= 3:
            total, free = (_mebibytes(part) for part in parts[1:3])
            cards.append(Accelerator(f"nvidia{index}", parts[0], total, free, "nvidia-smi"))
    return cards


def amd_sysfs(text: str) -> list[Accelerator]:
    """Lines `PATH TOTAL USED` in bytes, read from `mem_info_vram_*` of the amdgpu driver."""
    found = re.findall(r"^(\S+) (\d+) (\d+)$", text, re.MULTILINE)
    return [
        Accelerator(path.split("/")[-2], "AMD GPU", int(total), int(total) - int(used), "amdgpu sysfs")
        for path, total, used in found
        if path.count("/") >= 2
    ]


def mac_displays(text: str) -> list[Accelerator]:
    """`system_profiler SPDisplaysDataType`: the chip, its GPU cores, and the memory of cards that have their own."""
    cards = []
    for index, part in enumerate(re.split(r"^ +Chipset Model: ", text, flags=re.MULTILINE)[1:]):
        cores = re.search(r"^ +Total Number of Cores: (\d+)", part, re.MULTILINE)
        own = re.search(r"^ +VRAM \(Total\): (\d+) (MB|GB)", part, re.MULTILINE)
        name = part.splitlines()[0].strip() + (f", {cores[1]} cores" if cores else "")
        total = int(own[1]) * MIB * (1024 if own[2] == "GB" else 1) if own else None
        cards.append(Accelerator(f"display{index}", name, total, None, "system_profiler"))
    return cards


def unified_vulkan(text: str) -> set[str]:
    """Names of the devices that `ggml_vulkan: 0 = NAME | uma: 1 | ...` says share memory with the CPU."""
    found = re.findall(r"^ggml_vulkan: (\d+) = .*\buma: 1\b", text, re.MULTILINE)
    return {f"Vulkan{number}" for number in found}


def version(text: str) -> str:
    """The build of a llama.cpp program: `version: 4230 (0c39f44d)` gives `4230 (0c39f44d)`."""
    found = re.search(r"^version: (.+)$", text, re.MULTILINE)
    return found[1].strip() if found else ""


def help_flags(text: str) -> list[str]:
    """Every option that `--help` names at the beginning of a line."""
    option = r"--?[A-Za-z][\w-]*"
    heads = re.findall(rf"^{option}(?:,\s+{option})*", text, re.MULTILINE)
    return sorted({flag for head in heads for flag in re.split(r",\s+", head)})


def listening_ports(text: str) -> set[int]:
    """Ports in state LISTEN, from `/proc/net/tcp` (and tcp6) or from `netstat -an` on macOS."""
    linux = re.findall(
        r"^\s*\d+: [0-9A-F]+:([0-9A-F]{4}) [0-9A-F]+:[0-9A-F]{4} ([0-9A-F]{2}) ", text, re.MULTILINE
    )
    mac = re.findall(r"^tcp\S*\s+\d+\s+\d+\s+\S+\.(\d+)\s+\S+\s+LISTEN\b", text, re.MULTILINE)
    return {int(port, 16) for port, state in linux if state == LISTENING} | {int(port) for port in mac}


def free_disk(text: str) -> dict[str, int]:
    """`df -Pk`: free bytes by mount point."""
    rows = re.findall(r"^.+?\s+\d+\s+\d+\s+(-?\d+)\s+\d+%\s+(/.*)$", text, re.MULTILINE)
    return {mount: max(int(free), 0) * KIB for free, mount in rows}


def addresses(text: str) -> list[str]:
    """IPv4 addresses of the host, loopback last, from `ip -4 -o addr`, `ifconfig` or `hostname -I`."""
    number = r"\d{1,3}(?:\.\d{1,3}){3}"
    found = re.findall(rf"inet (?:addr:)?({number})", text) or re.findall(rf"(?<![\d.]){number}", text)
    return sorted(dict.fromkeys(found), key=lambda address: address.startswith("127."))


def on_battery(text: str) -> bool | None:
    """True when the host runs from its battery; None when it does not say (a desktop)."""
    if "Battery Power" in text:
        return True
    if "AC Power" in text:
        return False
    states = re.findall(r"^(?:AC|ADP|ACAD|Mains)\S*\s+([01])$", text, re.MULTILINE)
    return "1" not in states if states else None


def sleep_setting(text: str) -> tuple[bool | None, str]:
    """Whether a host falls asleep by itself, and how that is known; None where only its desktop would know."""
    minutes = re.search(r"^ *sleep +(\d+)", text, re.MULTILINE)
    if minutes:
        idle = int(minutes[1])
        return (
            idle > 0,
            f"sleeps after {idle} min without a user (pmset)" if idle else "never sleeps by itself (pmset)",
        )
    if re.search(r"^(?:sleep|suspend)\.target masked", text, re.MULTILINE):
        return False, "cannot sleep (systemd, masked)"
    action = re.findall(r"^ *IdleAction=(\S+)", text, re.MULTILINE)
    if action and action[-1] not in ("ignore", "lock"):
        return True, f"does {action[-1]} when idle (logind)"
    if ".target" in text:
        return None, "systemd lets it sleep but does not send it; a desktop session may"
    return None, ""


def rpc_protocol(text: str) -> str:
    """`Starting RPC server v5.0.0` gives `5.0.0`."""
    found = re.search(r"RPC server v(\d+\.\d+\.\d+)", text)
    return found[1] if found else ""


def _mebibytes(text: str) -> int | None:
    found = re.match(r"(\d+)(?:\s*MiB)?$", text)
    return int(found[1]) * MIB if found else None


def held_by(ours: str) -> int:
    """Bytes of RAM of our listed processes: `Rss…: n kB` lines on Linux, lines that begin with kilobytes on a Mac."""
    kilobytes = re.findall(r"^(?:Rss\w+:)?\s*(\d+)\s", ours, re.MULTILINE)
    return 1024 * sum(map(int, kilobytes))

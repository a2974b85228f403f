"""Asks a device what it is: one fixed shell program, the RPC protocol of its worker, a free port."""

from __future__ import annotations

import asyncio
import re
import secrets
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from inventory.core import parsers
from inventory.core.hardware import clock_skew, hardware_of
from inventory.core.parsers import Section, text_of
from inventory.remote import Connection, RemoteError

PROBE_SECONDS = 45.0
HELLO_SECONDS = 5.0
WORKER_SECONDS = 60
RPC_HELLO, RPC_CAPABILITY_BYTES = 14, 24
NEEDED_FLAGS = ("--rpc", "--list-devices", "-ts", "-ot", "-np")
WISHED_FLAGS = {  # what goes without them, for the device's page
    "--swa-full": "no hand-over of models with sliding windows",
    "--slot-save-path": "no hand-over",
    "--kv-unified": "hand-over between equal numbers of slots only",
    "--metrics": "no counters of its own",
    "--fit": "it may place blocks elsewhere than planned",
    "--cache-ram": "idle slots may lose what was handed over",
}
FIRST_PORT, LAST_PORT = 20_000, 29_999

PROGRAM = r"""
M=$1; FOLDER=$2
LC_ALL=C; export LC_ALL
PATH=$PATH:/usr/local/bin:/opt/homebrew/bin:/usr/sbin:/sbin; export PATH
GGML_NO_BACKTRACE=1; export GGML_NO_BACKTRACE
within() { s=$1; shift; if command -v timeout >/dev/null 2>&1; then timeout "$s" "$@"; else "$@"; fi; }
section() {
  n=$1; shift
  printf '\n%s begin %s\n' "$M" "$n"
  "$@" 2>/dev/null; r=$?
  printf '\n%s end %s %s\n' "$M" "$n" "$r"
}
sums() {
  if command -v sha256sum >/dev/null 2>&1; then sha256sum "$@"; else shasum -a 256 "$@"; fi
}
amd() {
  for d in /sys/class/drm/card*/device; do
    [ -r "$d/mem_info_vram_total" ] || continue
    echo "$d $(cat "$d/mem_info_vram_total") $(cat "$d/mem_info_vram_used")"
  done
}
power() {
  for d in /sys/class/power_supply/*; do
    [ -r "$d/online" ] && echo "$(basename "$d") $(cat "$d/online")"
  done
  command -v pmset >/dev/null 2>&1 && pmset -g batt | head -n 1
  return 0
}
sleeps() {
  if command -v pmset >/dev/null 2>&1; then pmset -g | grep -E '^ *sleep '; return 0; fi
  command -v systemctl >/dev/null 2>&1 || return 0
  for u in sleep.target suspend.target; do echo "$u $(within 5 systemctl is-enabled "$u" 2>/dev/null)"; done
  grep -h -s -E '^ *(IdleAction|HandleLidSwitch)=' /etc/systemd/logind.conf /etc/systemd/logind.conf.d/*.conf
  return 0
}
limits() {
  cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null
  return 0
}
ours() {
  for f in $(grep -l -s -a E2LLM_MARKER=e2llm- /proc/[0-9]*/environ); do
    echo "$f"; grep -h -s -E '^Rss(Anon|Shmem):' "${f%environ}status"
  done
  [ -d /proc/self ] || ps eww -axo rss=,command= 2>/dev/null | grep E2LLM_MARKER=e2llm- | grep -v grep
  return 0
}
tools() {
  for t in python3 perl iperf3 curl bash nvidia-smi sha256sum shasum; do
    command -v "$t" >/dev/null 2>&1 && echo "$t"
  done
  return 0
}
board() {
  for f in /sys/devices/virtual/dmi/id/product_name /proc/device-tree/model; do
    [ -r "$f" ] && { tr -d '\000' < "$f"; return 0; }
  done
  return 1
}
listed() {
  within 20 "$SERVER" --list-devices 2>&1
}
found() {
  for f in "$FOLDER" "$@"; do
    [ -n "$f" ] && [ -f "$f/$WANTED" ] && [ -x "$f/$WANTED" ] && { echo "$f/$WANTED"; return 0; }
  done
  [ -z "$FOLDER" ] && command -v "$WANTED" && return 0
  return 1
}
search() {
  WANTED=$1; shift
  if [ -z "$FOLDER" ] && command -v "$WANTED"; then return 0; fi
  found "$@" "$HOME/.local/bin" "$HOME/bin" "$HOME/llama.cpp/build/bin" "$HOME/llama.cpp/bin" "$HOME/llama.cpp" \
    "$HOME/src/llama.cpp/build/bin" /usr/local/bin /opt/homebrew/bin /opt/llama.cpp/build/bin /opt/llama.cpp/bin \
    /opt/llama.cpp /usr/local/llama.cpp/bin /usr/lib/llama.cpp /app
}
section home printf '%s\n' "$HOME"
section uname uname -srm
section os_release cat /etc/os-release
section boot_id cat /proc/sys/kernel/random/boot_id
section meminfo cat /proc/meminfo
section cpuinfo sh -c 'head -n 40 /proc/cpuinfo; grep -m 1 -E "^(Model|Hardware)" /proc/cpuinfo; true'
section board board
section cores nproc
section cgroup limits
section sysctl sysctl hw.memsize hw.ncpu hw.physicalcpu machdep.cpu.brand_string hw.model \
  kern.bootsessionuuid iogpu.wired_limit_mb
section sw_vers sw_vers
section displays within 15 system_profiler SPDisplaysDataType
section vm_stat vm_stat
section addresses sh -c 'ip -4 -o addr show scope global || ifconfig | grep "inet " || hostname -I'
section disk sh -c 'df -Pk "$HOME" /dev/shm || df -Pk "$HOME"'
section power power
section sleep sleeps
section tools tools
section ours ours
section amd_sysfs amd
section nvidia_smi within 10 nvidia-smi --query-gpu=name,memory.total,memory.free --format=csv,noheader,nounits
section driver within 10 nvidia-smi --query-gpu=driver_version --format=csv,noheader
SERVER=$(search llama-server)
HERE=$([ -n "$SERVER" ] && dirname "$(readlink -f "$SERVER" 2>/dev/null || echo "$SERVER")")
RPC=$(search ggml-rpc-server "$HERE" || search rpc-server "$HERE")
section server_path printf '%s\n' "$SERVER"
section rpc_path printf '%s\n' "$RPC"
[ -n "$SERVER" ] || exit 0
section llama_version sh -c 'exec 2>&1; "$0" --version' "$SERVER"
section llama_devices listed
section llama_help within 10 "$SERVER" --help
section llama_sums sums "$SERVER" "$HERE"/libllama.* "$HERE"/libggml-rpc.* "$RPC"
"""

FREE_PORTS = r"""
for f in /proc/net/tcp /proc/net/tcp6; do [ -r "$f" ] && cat "$f"; done
[ -r /proc/net/tcp ] || netstat -an -p tcp 2>/dev/null | grep LISTEN || true
"""


class ProbeError(RemoteError):
    """The device answers but is not fit to be used; the text says what is missing and the remedy."""


@dataclass(frozen=True)
class Probed:
    hardware: dict[str, Any]
    llama: dict[str, Any]
    clock_skew_seconds: float


async def probe(connection: Connection, llama_folder: str, clock: Callable[[], float]) -> Probed:
    """Read the device once; `llama_folder` is where llama.cpp lies when it is not on PATH, `clock` is ours."""
    marker = f"e2llm-{secrets.token_hex(8)}"
    done = await connection.script(PROGRAM, [marker, llama_folder], timeout_seconds=PROBE_SECONDS)
    found = parsers.sections(done.stdout, marker)
    if "uname" not in found:
        reason = (done.stderr or done.stdout).strip()[-300:] or f"exit status {done.exit_status}"
        raise ProbeError(
            f"{connection.name} logged us in but did not run the probe: {reason}. It needs a POSIX /bin/sh."
        )
    hardware = hardware_of(found)
    asked = clock()
    stamp = (await connection.script("date +%s", timeout_seconds=10.0)).stdout.strip()
    skew = clock_skew(int(stamp), asked, clock()) if stamp.isdigit() else 0.0
    llama = _llama(found, hardware)
    if llama.get("rpc_server_path"):
        llama["rpc_protocol"] = await rpc_protocol(connection, llama["rpc_server_path"])
    return Probed(hardware, llama, skew)


async def rpc_protocol(connection: Connection, rpc_server_path: str) -> str:
    """Protocol of the worker, asked of a short-lived one on the device's loopback; empty when it does not say."""
    port = await free_port(connection)
    argv = [rpc_server_path, "-H", "127.0.0.1", "-p", str(port)]
    async with connection.hold_bounded(argv, WORKER_SECONDS), connection.tunnel(port) as local_port:
        return await _hello(local_port)


async def free_port(connection: Connection, taken: frozenset[int] = frozenset()) -> int:
    """A port on which nothing listens, other than those in `taken`, which somebody is about to use."""
    done = await connection.script(FREE_PORTS, timeout_seconds=10.0)
    used = parsers.listening_ports(done.stdout) | taken
    for _ in range(200):
        port = FIRST_PORT + secrets.randbelow(LAST_PORT - FIRST_PORT)
        if port not in used:
            return port
    raise ProbeError(
        f"{connection.name} has no free port between {FIRST_PORT} and {LAST_PORT}; stop what listens there."
    )


def missing(llama: dict[str, Any], name: str) -> str:
    """What is wrong with the llama.cpp found, as a sentence with the remedy; empty when it can be used."""
    if not llama.get("server_path"):
        return (
            f"No llama-server was found on {name}: not on PATH and not in the usual folders. "
            "Install llama.cpp there, or enter its folder on the device's page, and probe again."
        )
    if not llama.get("version"):
        return (
            f"{llama['server_path']} on {name} does not run ({llama['failure']}). "
            "Usually it was built for another processor: install a build that fits this one."
        )
    lacking = [flag for flag in NEEDED_FLAGS if flag not in llama["flags"]]
    if lacking:
        return (
            f"{llama['server_path']} on {name} does not know {', '.join(lacking)}. "
            "Install a newer llama.cpp, built with -DGGML_RPC=ON."
        )
    if not llama.get("rpc_server_path"):
        return f"{name} has no ggml-rpc-server, so it can serve alone or as a master, but not as a worker of another."
    return ""


def lacking(llama: dict[str, Any]) -> list[str]:
    """Options that this build does not know and that we would use, each with what goes without it."""
    return [f"{flag}: {effect}" for flag, effect in WISHED_FLAGS.items() if flag not in llama["flags"]]


def _llama(found: dict[str, Section], hardware: dict[str, Any]) -> dict[str, Any]:
    server = text_of(found, "server_path").strip()
    if not server:
        return {}
    version = parsers.version(text_of(found, "llama_version"))
    status = found["llama_version"].status if "llama_version" in found else 1
    output = found["llama_version"].text.strip()[-200:] if "llama_version" in found else ""
    lines = re.findall(r"^(\w{64})\s+\*?(.+)$", _printed(found, "llama_sums"), re.MULTILINE)
    sums = {path: digest for digest, path in lines}
    return {
        "server_path": server,
        "rpc_server_path": text_of(found, "rpc_path").strip(),
        "version": version or ("unknown build" if status == 0 else ""),
        "failure": "" if status == 0 else f"exit status {status}{': ' + output if output else ''}",
        "rpc_protocol": "",
        "sha256": sums.get(server, ""),
        "library_sha256": sorted(set(sums.values())),
        "flags": parsers.help_flags(text_of(found, "llama_help")),
        "devices": [gpu["name"] for gpu in hardware["gpus"]],
    }


def _printed(found: dict[str, Section], name: str) -> str:
    """Output of a command that may print what it could and still fail."""
    return found[name].text if name in found else ""


async def _hello(port: int) -> str:
    """Speak the first message of llama.cpp's RPC; newer protocols send 24 bytes of capabilities with it."""
    for attempt in range(20):
        for capability_bytes in (RPC_CAPABILITY_BYTES, 0):
            try:
                async with asyncio.timeout(HELLO_SECONDS):
                    return await _ask_version(port, capability_bytes)
            except (OSError, asyncio.IncompleteReadError):
                continue
            except TimeoutError:
                return ""
        await asyncio.sleep(0.05 * (attempt + 1))
    return ""


async def _ask_version(port: int, capability_bytes: int) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(struct.pack("<BQ", RPC_HELLO, capability_bytes) + bytes(capability_bytes))
        await writer.drain()
        (length,) = struct.unpack("<Q", await reader.readexactly(8))
        answer = await reader.readexactly(min(length, 1024))
    finally:
        writer.close()
    return ".".join(str(number) for number in answer[:3])

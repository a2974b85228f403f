"""What a llama-server says about its own placement while it loads."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from serving.core.commands import ExpectedBuffer

BUFFER_LINE = re.compile(
    r": +(?P<device>\S+) +(?P<what>model|KV|compute|output) buffer size = +(?P<mebibytes>[\d.]+) MiB"
)
HOST_BUFFER = re.compile(r"^(CPU_\w+|AMX|\w+_Host)$")  # repacked, tiled or pinned: all of them are RAM
MEBIBYTE = 2**20


@dataclass(frozen=True)
class Buffers:
    """Bytes that one llama.cpp device holds after the load; the logits are counted to what it computes with."""

    model_bytes: int = 0
    kv_bytes: int = 0
    compute_bytes: int = 0


def buffers(log: str) -> dict[str, Buffers]:
    """Device name -> bytes; the several buffers of one device are added up."""
    found: dict[str, dict[str, int]] = {}
    for match in BUFFER_LINE.finditer(log):
        device = HOST_BUFFER.sub("CPU", match["device"]).removesuffix("_Mapped")
        sizes = found.setdefault(device, {"model": 0, "KV": 0, "compute": 0, "output": 0})
        sizes[match["what"]] += round(float(match["mebibytes"]) * MEBIBYTE)
    return {
        device: Buffers(sizes["model"], sizes["KV"], sizes["compute"] + sizes["output"])
        for device, sizes in found.items()
    }


def missing_devices(log: str, expected: Sequence[ExpectedBuffer]) -> list[str]:
    """Devices of the plan without weights or KV cache: an old master goes on without a lost worker.

    A model that makes embeddings has no cache anywhere.
    """
    found = buffers(log)
    has_cache = any(sizes.kv_bytes for sizes in found.values())
    absent = []
    for buffer in expected:
        sizes = found.get(buffer.log_name, Buffers())
        is_whole = sizes.model_bytes and (sizes.kv_bytes or not has_cache)
        if not is_whole and buffer.log_name not in absent:
            absent.append(buffer.log_name)
    return absent

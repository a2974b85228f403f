"""Which graphics cards a machine has, by llama.cpp and by the system, and which of them share memory with the CPU."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from inventory.core import parsers
from inventory.core.parsers import Accelerator, Section, text_of

# Apple's, NVIDIA's and AMD's or Intel's chips in which CPU and GPU use the same memory.
UNIFIED = re.compile(
    r"\b(?:apple|gb10|orin|tegra|xavier|thor)\b"
    r"|radeon(?: vega \d+)? graphics|radeon \d{3,4}[ms]\b|ryzen|(?:u?hd|iris|iris\(r\)) (?:xe )?graphics",
    re.IGNORECASE,
)
SAME_CARD_SHARE = 0.05
NVIDIA, AMD = "nvidia-smi", "amdgpu sysfs"


def system_cards(found: dict[str, Section]) -> list[Accelerator]:
    """Cards by the vendors' tools and by macOS, whether llama.cpp uses them or not."""
    return [
        *parsers.nvidia_smi(text_of(found, "nvidia_smi")),
        *parsers.amd_sysfs(text_of(found, "amd_sysfs")),
        *parsers.mac_displays(text_of(found, "displays")),
    ]


def shares_memory(card: Accelerator, listing: str) -> bool:
    """Whether the card's memory is the CPU's: Vulkan says so itself (`uma: 1`), of others the name tells."""
    return card.name in parsers.unified_vulkan(listing) or UNIFIED.search(card.description) is not None


def is_unified(hardware: dict[str, Any], gpu: dict[str, Any]) -> bool:
    """Whether this GPU of a probed machine shares memory with the CPU; older probes said it of the machine."""
    return bool(gpu["shares_memory"] if "shares_memory" in gpu else hardware.get("is_unified"))


def same_card(gpu: dict[str, Any], cards: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The system's entry for a GPU of llama.cpp: of its maker's cards the one nearest in size; orders differ."""
    maker = _maker(gpu)
    sized = [card for card in cards if card["source"] == maker and card["total_bytes"]]
    return min(sized, key=lambda card: abs(card["total_bytes"] - gpu["total_bytes"]), default=None)


def disagrees(gpu: dict[str, Any], card: dict[str, Any] | None) -> bool:
    if card is None:
        return False
    return bool(abs(gpu["total_bytes"] - card["total_bytes"]) > SAME_CARD_SHARE * card["total_bytes"])


def _maker(gpu: dict[str, Any]) -> str:
    text = f"{gpu['name']} {gpu['description']}".lower()
    if "cuda" in text or "nvidia" in text:
        return NVIDIA
    return AMD if "rocm" in text or "amd" in text or "radeon" in text else ""

"""What must hold between devices of a cluster file: other names, one link for two, equal kinds alike in all numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.core.problem import Device

NUMBERS = ("gpu_usable_bytes", "ram_usable_bytes", "can_be_master", "max_blocks")
TABLES = {"decode": "micro_batch", "prefill": "tokens"}
COLUMNS = ("gpu_block_seconds", "cpu_block_seconds", "head_seconds")


def doubles(devices: Sequence[Device]) -> Iterator[tuple[str, str]]:
    """Path and fault of every name that another device has already."""
    seen: set[str] = set()
    for index, device in enumerate(devices):
        if device.name and device.name in seen:
            yield f"devices[{index}].name", f"{device.name!r} is used twice"
        seen.add(device.name)


def relinked(pairs: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Path and fault of every link between two devices that have one already."""
    seen: set[frozenset[str]] = set()
    for index, (a, b) in enumerate(pairs):
        if frozenset((a, b)) in seen:
            yield f"pairs[{index}]", f"{a} and {b} are already linked"
        seen.add(frozenset((a, b)))


def unlike(devices: Sequence[Device]) -> Iterator[tuple[str, str]]:
    """Path and fault of every device that differs from the first one of its kind."""
    firsts: dict[str, Device] = {}
    for index, device in enumerate(devices):
        first = firsts.setdefault(device.kind, device)
        mine, others = _numbers(device), _numbers(first)
        if field := next((key for key in mine if mine[key] != others[key]), None):
            yield (
                f"devices[{index}].kind",
                f"{device.name} and {first.name} are both {device.kind!r} but differ in {field}; "
                "devices of one kind are interchangeable",
            )


def _numbers(device: Device) -> dict[str, Any]:
    numbers = {key: getattr(device, key) for key in NUMBERS}
    for table, points in TABLES.items():
        one = getattr(device, table)
        numbers[f"{table}.{points}"] = one.points
        numbers.update({f"{table}.{column}": getattr(one, column) for column in COLUMNS})
    return numbers

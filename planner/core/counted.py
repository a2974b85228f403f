from __future__ import annotations


def counted(count: int, noun: str, plural: str = "") -> str:
    """`1 slot`, `4 slots`, `1,200 slots`."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"

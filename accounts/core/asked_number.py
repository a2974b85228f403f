"""Whole numbers as they stand in addresses and forms, where a person can write anything."""

from __future__ import annotations

LARGEST_ROW_ID = 2**63 - 1


def asked_number(text: str, largest: int = LARGEST_ROW_ID) -> int:
    """The number from 1 to `largest` that a text is; 0, which is no row's id, when it is none.

    Databases refuse larger numbers with an error of their own, and Python reads no number of thousands of digits.
    """
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(largest))
    return int(text) if is_number and int(text) <= largest else 0

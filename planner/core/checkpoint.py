"""What a search has to remember to go on where it was killed, as plain values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from planner.core.assembly import Choice
from planner.core.catalogue import Catalogue

Best = tuple[tuple[Choice, ...], float]  # replicas and their value


def written(bests: Iterable[Best]) -> list[Any]:
    """Best plans of generations: of each replica its devices, its role and its slots tell the rest."""
    return [
        [[[list(devices), option.role, option.slots] for devices, option in choices], seconds]
        for choices, seconds in bests
    ]


def read(catalogue: Catalogue, document: list[Any]) -> list[Best]:
    return [
        (tuple(_choice(catalogue, tuple(devices), role, slots) for devices, role, slots in replicas), seconds)
        for replicas, seconds in document
    ]


def _choice(catalogue: Catalogue, devices: tuple[int, ...], role: str, slots: int) -> Choice:
    options = catalogue.options(role, catalogue.group_of(devices))
    return devices, next(option for option in options if option.slots == slots)

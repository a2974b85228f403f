"""A measured speed beside the planned one, in words."""

from __future__ import annotations

from inventory.core.quantities import percent_text

NEAR = 0.05
SEVERAL = 2.0


def against_plan(measured: float, planned: float) -> str:
    """How far apart two speeds are: a share below twice the plan, a factor from there on."""
    ratio = measured / planned
    if ratio >= SEVERAL:
        return f"{ratio:.1f} times as fast"
    if abs(ratio - 1) < NEAR:
        return "as predicted"
    return f"{percent_text(abs(ratio - 1))} {'above' if ratio > 1 else 'below'}"


def with_all(slots: int) -> str:
    """For what a plan says of one answer of several: behind the number, the load that it holds at."""
    return f" with all {slots} slots busy" if slots > 1 else ""

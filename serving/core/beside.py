"""May a new plan be started while the old one still runs: by the memory that both need on each device."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any


def fits_beside(new: Mapping[str, Any], running: Sequence[Mapping[str, Any]]) -> bool:
    """Whether no device would hold more than its limit with all these plans on it."""
    limits: dict[str, int] = {}
    needs: dict[str, int] = defaultdict(int)
    for plan in [new, *running]:
        for replica in plan["replicas"]:
            for stage in replica["stages"]:
                needs[stage["device"]] += stage["gpu_bytes"]
                limits[stage["device"]] = stage["gpu_limit_bytes"]
    return all(needs[device] <= limit for device, limit in limits.items())

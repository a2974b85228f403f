"""What iperf3 says of one test, as JSON (`-J`), in bytes per second."""

from __future__ import annotations

import json
from typing import Any

from inventory.core.link_matrix import LinkError

SHORTEST_SECONDS = 0.1


def received_rates(text: str) -> list[float]:
    """Bytes per second in each interval, counted where they arrived: a sender also counts what waits in its buffers.

    LinkError says why there is none.
    """
    report = _report(text)
    if "error" in report:
        raise LinkError(f"iperf3 says: {str(report['error'])[:200]}")
    try:
        reverse = bool(report["start"]["test_start"]["reverse"])
        receiver = report if reverse else report.get("server_output_json", {})
        rates = [_rate(one["sum"]) for one in receiver.get("intervals", []) if _counts(one["sum"])]
        found = rates or [_rate(report["end"]["sum_received"])]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise LinkError("iperf3 answered in a form that is not known here") from None
    if min(found) <= 0:
        raise LinkError("iperf3 moved nothing in a part of its test")
    return found


def _report(text: str) -> dict[str, Any]:
    try:
        report = json.loads(text)
    except ValueError:
        report = None
    if not isinstance(report, dict):
        raise LinkError(f"iperf3 did not answer in JSON: {text.strip()[-200:]!r}")
    return report


def _rate(total: dict[str, Any]) -> float:
    return float(total["bits_per_second"]) / 8


def _counts(total: dict[str, Any]) -> bool:
    """Not what was left out at the beginning, while TCP speeds up, nor a last splinter."""
    return not total.get("omitted", False) and float(total["seconds"]) >= SHORTEST_SECONDS

"""Figures of the plan pages as plotly JSON; colours are named as the theme's variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inventory.core.quantities import seconds_text
from planner.events import Point

Json = dict[str, Any]
REFERENCE_COLOURS = ("prefill", "decode", "mixed", "ink-3", "line-strong")
SERIES = ("best_seconds", "mean_seconds", "bound_seconds")


def convergence(points: Sequence[Point], references: Mapping[str, float]) -> Json:
    """Best, mean and bound per generation; `references` are other plans' values, drawn as level lines."""
    numbers = [point["number"] for point in points]
    best = [point["best_seconds"] for point in points]
    mean = [point["mean_seconds"] for point in points]
    bound = [point["bound_seconds"] for point in points]
    data = [
        _line("Best so far", numbers, best, "var(--accent)", width=3),
        _line("Mean of the generation", numbers, mean, "var(--ink-3)", dash="dot"),
        _line("No plan can be better", numbers, bound, "var(--danger)", dash="dash"),
    ]
    last = numbers[-1] if numbers else 1
    for index, (name, seconds) in enumerate(references.items()):
        colour = f"var(--{REFERENCE_COLOURS[index % len(REFERENCE_COLOURS)]})"
        data.append(_line(name, [0, last], [seconds, seconds], colour, dash="dashdot"))
    return {"data": data, "layout": _axes("Generation", "Maximum waiting time (s)")}


def waiting(curves: Mapping[str, Sequence[float]]) -> Json:
    """Waiting time of each simulated request, sorted, one line a plan; the first stands out."""
    colours = ["accent", "ink-3", "decode", "prefill", "mixed", "danger"]
    data = []
    for index, (name, curve) in enumerate(curves.items()):
        colour = f"var(--{colours[index % len(colours)]})"
        requests = list(range(1, len(curve) + 1))
        data.append(_line(name, requests, sorted(curve), colour, width=1.5 if index else 3))
    return {"data": data, "layout": _axes("Requests, shortest wait first", "Waiting time (s)")}


def _line(
    name: str,
    x: Sequence[float],
    y: Sequence[float | None],
    colour: str,
    *,
    dash: str = "solid",
    width: float = 1.5,
) -> Json:
    style = {"color": colour, "dash": dash, "width": width}
    return {"type": "scatter", "mode": "lines", "name": name, "x": list(x), "y": list(y), "line": style}


def _axes(x_title: str, y_title: str) -> Json:
    return {
        "xaxis": {"title": {"text": x_title}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": y_title}, "rangemode": "tozero"},
    }


def convergence_table(points: Sequence[Point]) -> Json:
    """The numbers of the convergence chart."""
    rows = [
        [point["number"], *(optional(point[name]) for name in SERIES), f"{point['evaluations']:,}"]  # type: ignore[literal-required]
        for point in points
    ]
    return {"columns": ["Generation", "Best", "Mean", "Bound", "Replicas evaluated"], "rows": rows}


def optional(seconds: float | None) -> str:
    return "–" if seconds is None else seconds_text(seconds)


def waiting_table(waits: Sequence[float]) -> Json:
    """The waiting curve at every tenth of the requests."""
    ranked = sorted(waits)
    shares = [ranked[min(len(ranked) - 1, round(share * (len(ranked) - 1) / 10))] for share in range(11)]
    rows = [[f"{10 * share} %", seconds_text(seconds)] for share, seconds in enumerate(shares)]
    return {"columns": ["Share of the requests", "Wait at most"], "rows": rows}

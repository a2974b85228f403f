"""Figures of the plan pages as plotly JSON; colours are named as the theme's variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from planner.events import Point

Figure = dict[str, Any]


def convergence(points: Sequence[Point], references: Mapping[str, float]) -> Figure:
    """Best, mean and bound per generation; `references` are other plans' values, drawn as level lines."""
    numbers = [point["number"] for point in points]
    data = [
        line("Best so far", numbers, [point["best_seconds"] for point in points], "var(--accent)", width=3),
        line("Mean of the generation", numbers, [point["mean_seconds"] for point in points], "var(--ink-3)", dash="dot"),
        line("No plan can be better", numbers, [point["bound_seconds"] for point in points], "var(--danger)", dash="dash"),
    ]
    last = numbers[-1] if numbers else 1
    for name, seconds in references.items():
        data.append(line(name, [0, last], [seconds, seconds], "var(--line-strong)", dash="dashdot"))
    return {"data": data, "layout": axes("Generation", "Maximum waiting time (s)")}


def waiting(curves: Mapping[str, Sequence[float]]) -> Figure:
    """Waiting time of each simulated request, sorted, one line a plan."""
    colours = ["var(--accent)", "var(--ink-3)", "var(--decode)", "var(--prefill)", "var(--mixed)", "var(--danger)"]
    data = [
        line(name, list(range(1, len(curve) + 1)), sorted(curve), colours[index % len(colours)], width=3 if index == 0 else 1.5)
        for index, (name, curve) in enumerate(curves.items())
    ]
    return {"data": data, "layout": axes("Requests, shortest wait first", "Waiting time (s)")}


def line(
    name: str, x: Sequence[float], y: Sequence[float | None], colour: str, *, dash: str = "solid", width: float = 1.5
) -> dict[str, Any]:
    style = {"color": colour, "dash": dash, "width": width}
    return {"type": "scatter", "mode": "lines", "name": name, "x": list(x), "y": list(y), "line": style}


def axes(x_title: str, y_title: str) -> dict[str, Any]:
    return {
        "xaxis": {"title": {"text": x_title}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": y_title}, "rangemode": "tozero"},
    }

"""Figures of the plan pages as plotly JSON; colours are named as the theme's variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from inventory.core.quantities import seconds_text
from planner.core.memory import Floats
from planner.events import Point, search_seconds_text

Json = dict[str, Any]
REFERENCE_COLOURS = ("prefill", "decode", "mixed", "ink-3", "line-strong")
CURVE_COLOURS = ("accent", "ink-3", "decode", "prefill", "mixed", "danger")
CURVE_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
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
        _line("No plan can be better by the formula", numbers, bound, "var(--danger)", dash="dash"),
    ]
    last = numbers[-1] if numbers else 1
    for index, (name, seconds) in enumerate(references.items()):
        colour = f"var(--{REFERENCE_COLOURS[index % len(REFERENCE_COLOURS)]})"
        data.append(_line(f"{name}, simulated", [0, last], [seconds, seconds], colour, dash="dashdot"))
    return {"data": data, "layout": _axes("Round of the search", "Longest wait by the formula (s)")}


def waiting(curves: Mapping[str, Sequence[float]]) -> Json:
    """How long which share of the requests waits at most, one line a plan; the first stands out."""
    data = []
    for index, (name, curve) in enumerate(curves.items()):
        colour = f"var(--{CURVE_COLOURS[index % len(CURVE_COLOURS)]})"
        shares = [round(100 * step / (len(curve) - 1), 1) for step in range(len(curve))]
        dash = CURVE_DASHES[index % len(CURVE_DASHES)]
        data.append(_line(name, shares, curve, colour, dash=dash, width=1.5 if index else 3))
    return {
        "data": data,
        "layout": _axes("Share of the requests, shortest wait first (%)", "Waits at most (s)"),
    }


def wait_curve(waits: Sequence[float] | Floats) -> list[float]:
    """The wait that 0 %, 1 %, ... 100 % of the requests do not exceed."""
    return [float(f"{seconds:.6g}") for seconds in np.percentile(waits, range(101))]


def baseline_curves(plan: Json) -> dict[str, list[float]]:
    """Curves of other planners' plans by name; a plan file of an earlier version has none."""
    found = {}
    for baseline in plan["baselines"].values():
        if baseline["feasible"] and len(baseline.get("wait_curve_seconds", ())) > 1:
            floor = "" if baseline["holds_floor"] else " (breaks the floor)"
            # Its longest wait is told elsewhere in full: a number that is rounded twice may be another one.
            found[baseline["label"] + floor] = [
                *baseline["wait_curve_seconds"][:-1],
                baseline["max_wait_seconds"],
            ]
    return found


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
    return {"columns": ["Round", "Best", "Mean", "Bound", "Replicas evaluated"], "rows": rows}


def optional(seconds: float | None) -> str:
    return "–" if seconds is None else search_seconds_text(seconds)


def waiting_table(curves: Mapping[str, Sequence[float]]) -> Json:
    """The waiting curves at every tenth of the requests."""
    rows = [
        [f"{10 * tenth} %", *(seconds_text(_at_tenth(curve, tenth)) for curve in curves.values())]
        for tenth in range(11)
    ]
    return {"columns": ["Share of the requests", *curves], "rows": rows}


def _at_tenth(curve: Sequence[float], tenth: int) -> float:
    return float(np.interp(tenth / 10, np.linspace(0.0, 1.0, len(curve)), curve))

"""Traffic as live charts: queue, slots, tokens, where the time to the first token goes, hand-overs and errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from inventory.core.quantities import percent_text, seconds_text, significant
from serving.core.tally import Spread, Tally, prompt_and_first_step
from serving.models import RequestSample

ABSENT = "–"
LONGEST_SILENCE = timedelta(seconds=15)  # an idle gateway writes a look every 10 s
PHASES = (
    ("queued_seconds", "In the queue", "var(--ink-3)"),
    ("prefill_seconds", "Prefill", "var(--prefill)"),
    ("handover_seconds", "Hand-over", "var(--mixed)"),
    ("first_step_seconds", "First decode step", "var(--decode)"),
)
ROLE_COLOURS = {"prefill": "var(--prefill)", "decode": "var(--decode)", "mixed": "var(--mixed)"}

Json = dict[str, Any]
Series = list[tuple[datetime, float | None]]
Tallies = dict[datetime, Tally]  # start of a step -> its requests


@dataclass(frozen=True)
class Range:
    """How far back the page looks, and how wide one point of its charts is."""

    key: str
    label: str
    span: timedelta
    step: timedelta


RANGES = (
    Range("5m", "5 min", timedelta(minutes=5), timedelta(seconds=1)),
    Range("1h", "1 hour", timedelta(hours=1), timedelta(seconds=30)),
    Range("24h", "24 hours", timedelta(hours=24), timedelta(minutes=10)),
    Range("7d", "7 days", timedelta(days=7), timedelta(hours=1)),
)


@dataclass(frozen=True)
class Point:
    """Averages over one step; a step without a sample is a gap, never the last value again."""

    at: datetime
    waiting: float
    running: float
    slots: float
    tokens_per_second: float


def chosen_range(key: str | None) -> Range:
    return next((found for found in RANGES if found.key == key), RANGES[0])


def with_gaps(points: Sequence[Point], step: timedelta) -> list[Point | datetime]:
    """The points, with a bare time wherever samples are missing, so that the line is cut there."""
    found: list[Point | datetime] = []
    for point in points:
        last = found[-1] if found else None
        if isinstance(last, Point) and point.at - last.at > max(3 * step, LONGEST_SILENCE):
            found.append(last.at + step)
        found.append(point)
    return found


def line(points: Sequence[Point | datetime], name: str, what: str, colour: str) -> Json:
    x = [point.at if isinstance(point, Point) else point for point in points]
    y = [getattr(point, what) if isinstance(point, Point) else None for point in points]
    return trace(list(zip(x, y, strict=True)), name, colour)


def trace(series: Series, name: str, colour: str, **style: Any) -> Json:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": [at.isoformat() for at, _ in series],
        "y": [value for _, value in series],
        "line": {"color": colour, "width": 2},
        "connectgaps": False,
        **style,
    }


def figure(traces: list[Json], unit: str, range_: Range, now: datetime, **layout: Any) -> Json:
    x = {"type": "date", "range": [(now - range_.span).isoformat(), now.isoformat()]}
    y = {"title": {"text": unit}, "rangemode": "tozero"}
    return {"data": traces, "layout": {"xaxis": x, "yaxis": y, **layout}}


def queue(
    points: Sequence[Point | datetime],
    by_replica: dict[str, Series],
    roles: dict[str, str],
    range_: Range,
    now: datetime,
) -> Json:
    """Requests waiting: all of them, and per role's queue as far as samples of single replicas reach."""
    traces = [line(points, "All", "waiting", "var(--accent)")]
    dashes = ["dot", "dash", "dashdot", "longdash"]
    for number, (label, series) in enumerate(sorted(by_replica.items())):
        own = trace(series, label, ROLE_COLOURS.get(roles.get(label, ""), "var(--ink-3)"))
        own["line"] = {**own["line"], "width": 1.3, "dash": dashes[number % len(dashes)]}
        traces.append(own)
    return figure(traces, "requests", range_, now)


def slots(points: Sequence[Point | datetime], range_: Range, now: datetime) -> Json:
    used = line(points, "In use", "running", "var(--decode)") | {"fill": "tozeroy"}
    return figure([used, line(points, "All slots", "slots", "var(--ink-3)")], "slots", range_, now)


def tokens(points: Sequence[Point | datetime], range_: Range, now: datetime) -> Json:
    return figure([line(points, "Tokens", "tokens_per_second", "var(--accent)")], "tokens/s", range_, now)


def waits(groups: Tallies, range_: Range, now: datetime) -> Json:
    """Time to the first token: median, p95 and longest of each step."""
    lines = [
        ("Median", 0.5, "var(--accent)"),
        ("p95", 0.95, "var(--decode)"),
        ("Longest", 1.0, "var(--danger)"),
    ]
    traces = [
        trace(
            [(at, tally.first_token.percentile(share)) for at, tally in groups.items()],
            name,
            colour,
            mode="lines+markers",
        )
        for name, share, colour in lines
    ]
    return figure(traces, "s to the first token", range_, now)


def phases(groups: Tallies, range_: Range, now: datetime) -> Json:
    """Where the time to the first token went, on average, stacked."""
    traces = [
        bars([(at, tally.mean_seconds(name)) for at, tally in groups.items()], label, colour)
        for name, label, colour in PHASES
    ]
    return figure(traces, "s", range_, now, barmode="stack")


def handovers(groups: Tallies, range_: Range, now: datetime) -> Json:
    """Hand-overs that worked and fell back, and failed or cut requests, per step."""
    counted = (
        ("Handed over", "hits", "var(--ok)"),
        ("Fell back", "fallbacks", "var(--cpu)"),
        ("Failed or cut", "errors", "var(--danger)"),
    )
    traces = [
        bars([(at, getattr(tally, what)) for at, tally in groups.items()], label, colour)
        for label, what, colour in counted
    ]
    return figure(traces, "requests", range_, now, barmode="stack")


def bars(series: Series, name: str, colour: str) -> Json:
    x, y = [at.isoformat() for at, _ in series], [value for _, value in series]
    return {"type": "bar", "name": name, "x": x, "y": y, "marker": {"color": colour}}


def chart_step(range_: Range) -> timedelta:
    """Requests are rarer than samples: wider steps, about thirty on a chart."""
    return max(range_.step, range_.span / 30)


def phase_seconds(request: RequestSample, name: str) -> float:
    """Length of a phase of one request; 0 when it did not happen."""
    prompt, first_step = prompt_and_first_step(
        request.queued_seconds,
        request.prefill_seconds,
        request.handover_seconds,
        request.first_token_seconds,
    )
    split = {"prefill_seconds": prompt, "first_step_seconds": first_step}
    seconds: float | None = split.get(name, getattr(request, name, None))
    return seconds or 0.0


def tiles(points: Sequence[Point], whole: Tally) -> list[Json]:
    """The figures above the charts, over the chosen range."""
    tried = whole.hits + whole.fallbacks
    last = points[-1] if points else None
    refused = f"{whole.refused} refused, {whole.requests} requests"
    return [
        tile("waiting", "Waiting", count(last.waiting if last else None), "now", "hourglass-split"),
        tile("running", "Slots in use", of_slots(last), "now", "layers"),
        tile(
            "tokens",
            "Tokens/s",
            count(last.tokens_per_second if last else None),
            "now",
            "speedometer2",
        ),
        tile(
            "first-token",
            "Time to the first token",
            text_of(whole.first_token.percentile(0.5)),
            spread_text(whole.first_token),
            "clock-history",
        ),
        tile("hits", "Hand-over hits", hit_rate(whole), f"{whole.hits} of {tried}", "arrow-left-right"),
        tile(
            "reuse",
            "Prompts from cache",
            percent_text(whole.reused_tokens / whole.prompt_tokens) if whole.prompt_tokens else ABSENT,
            f"of {whole.prompt_tokens:,} tokens",
            "files",
        ),
        tile("errors", "Errors", str(whole.errors), refused, "exclamation-octagon"),
    ]


def tile(tile_id: str, label: str, value: str, hint: str, icon_name: str) -> Json:
    return {
        "tile_id": f"tile-{tile_id}",
        "label": label,
        "value": value,
        "hint": hint,
        "icon_name": icon_name,
    }


def count(value: float | None) -> str:
    return ABSENT if value is None else significant(value)


def of_slots(point: Point | None) -> str:
    return ABSENT if point is None else f"{point.running:.0f} / {point.slots:.0f}"


def text_of(seconds: float | None) -> str:
    return ABSENT if seconds is None else seconds_text(seconds)


def spread_text(firsts: Spread) -> str:
    if not firsts.count:
        return "no request in this range"
    return f"median; p95 {text_of(firsts.percentile(0.95))}, longest {text_of(firsts.most)}"


def hit_rate(whole: Tally) -> str:
    tried = whole.hits + whole.fallbacks
    return percent_text(whole.hits / tried) if tried else ABSENT


def table_of(found: Json) -> Json:
    """The same numbers as a table; steps are rows."""
    names = [series["name"] for series in found["data"]]
    rows: dict[str, list[str]] = {}
    for column, series in enumerate(found["data"]):
        for at, value in zip(series["x"], series["y"], strict=True):
            row = rows.setdefault(at, [ABSENT] * len(names))
            row[column] = count(value)
    ordered = sorted(rows.items(), reverse=True)[:60]
    return {
        "columns": ["Time (UTC)", *names],
        "rows": [[at[:19].replace("T", " "), *row] for at, row in ordered],
    }

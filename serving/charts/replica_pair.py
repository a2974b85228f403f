"""Two replicas as rows of one table and as lines of one chart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from inventory.core.quantities import percent_text, rate_text, seconds_text, significant
from serving.charts import tones, traffic
from serving.charts.against_plan import against_plan, with_all
from serving.charts.traffic import ABSENT, PHASES, Json, Range
from serving.core.tally import Spread, Tally
from serving.models import Replica

COLOURS = ("var(--accent)", "var(--decode)")


@dataclass(frozen=True)
class Side:
    """One of the two: its plan, and the requests it worked on, computed the prompt of, and answered."""

    replica: Replica
    plan: dict[str, Any]
    position: int
    steps: dict[datetime, Tally]
    all: Tally
    prompts: Tally
    answers: Tally
    up_seconds: float

    @property
    def label(self) -> str:
        return self.replica.label

    @property
    def tone(self) -> str:
        return tones.REPLICA[Replica.States(self.replica.state)]

    @property
    def colour(self) -> str:
        return COLOURS[self.position]

    def predicted_answer_rate(self) -> float | None:
        seconds = self.plan.get("tpot_seconds")
        return 1 / seconds if seconds and self.replica.role != Replica.Roles.PREFILL else None

    def predicted_prompt_rate(self) -> float | None:
        rate: float | None = self.plan.get("prefill_tokens_per_second")
        return rate if self.replica.role != Replica.Roles.DECODE else None


@dataclass(frozen=True)
class Row:
    label: str
    cells: list[str]


@dataclass(frozen=True)
class Group:
    title: str
    rows: list[Row]


def groups(sides: Sequence[Side], every: int) -> list[Group]:
    """Everything about the two, in the order in which one asks."""

    def row(label: str, cells: Sequence[str]) -> Row:
        return Row(label, list(cells))

    speed = [
        row(
            "Tokens/s of one answer",
            [answer_text(one) for one in sides],
        ),
        row(
            "Prompt tokens/s",
            [speed_text(one.prompts.prompt_rate, one.predicted_prompt_rate()) for one in sides],
        ),
        row(
            "Tokens sent, and a second while it was up",
            [sent_text(one.answers, one.up_seconds, every) for one in sides],
        ),
    ]
    waiting = [
        row("Time to the first token", [first_token_text(one.all.first_token) for one in sides]),
        *(row(label, [mean_text(one.all, name) for one in sides]) for name, label, _ in PHASES),
    ]
    outcome = [
        row("Requests", [significant(one.all.requests * every) for one in sides]),
        row("Failed or cut off", [share_text(one.all.errors, one.all.requests, every) for one in sides]),
        row(
            "Hand-overs that worked",
            [share_text(one.all.hits, one.all.hits + one.all.fallbacks, every) for one in sides],
        ),
    ]
    return [
        Group("Speed, measured beside predicted", speed),
        Group("Waiting: the median, and means of where it went", waiting),
        Group("What came of it", outcome),
    ]


def answer_text(side: Side) -> str:
    """The plan's number holds while every slot is busy, and the sums of requests do not tell how many were."""
    planned, slots = side.predicted_answer_rate(), side.replica.slots
    if planned is None or slots == 1:
        return speed_text(side.answers.answer_rate, planned)
    return f"{speed_text(side.answers.answer_rate, None)}, {rate_text(planned)} planned{with_all(slots)}"


def speed_text(measured: Spread, predicted: float | None) -> str:
    median = measured.percentile(0.5)
    if median is None:
        return f"{ABSENT}, {rate_text(predicted)} predicted" if predicted else ABSENT
    if not predicted:
        return rate_text(median)
    return f"measured {rate_text(median)}, planned {rate_text(predicted)}: {against_plan(median, predicted)}"


def sent_text(tally: Tally, up_seconds: float, every: int) -> str:
    tokens = tally.output_tokens * every
    return f"{significant(tokens)}, {rate_text(tokens / up_seconds)}" if tokens and up_seconds else ABSENT


def unlike_text(sides: Sequence[Side]) -> str:
    """What two replicas of different roles cannot be compared in; empty for two of one role."""
    roles = [side.replica.role for side in sides]
    if len(set(roles)) == 1:
        return ""
    names = " and ".join(f"{side.label} ({side.replica.get_role_display().lower()})" for side in sides)
    return (
        f"{names} do different parts of a request. The time to the first token and its shares are of whole requests "
        "that each had a part in, so they say nothing about which of the two is faster."
    )


def first_token_text(firsts: Spread) -> str:
    if not firsts.count:
        return ABSENT
    median, slow = firsts.percentile(0.5), firsts.percentile(0.95)
    return f"{seconds_text(median or 0.0)}, p95 {seconds_text(slow or 0.0)}"


def mean_text(tally: Tally, phase: str) -> str:
    seconds = tally.mean_seconds(phase)
    return ABSENT if seconds is None else seconds_text(seconds)


def share_text(part: int, whole: int, every: int) -> str:
    return f"{significant(part * every)} ({percent_text(part / whole)})" if whole else ABSENT


def figures(sides: Sequence[Side], range_: Range, now: datetime) -> dict[str, Json]:
    return {
        "split": split(sides),
        "waits": waits(sides, range_, now),
        "speed": speed(sides, range_, now),
    }


def split(sides: Sequence[Side]) -> Json:
    """Where the time to the first token goes: a bar for each replica."""
    labels = [side.label for side in sides]
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": label,
            "y": labels,
            "x": [side.all.mean_seconds(name) for side in sides],
            "marker": {"color": colour},
        }
        for name, label, colour in PHASES
    ]
    layout = {
        "barmode": "stack",
        "xaxis": {"title": {"text": "s"}, "rangemode": "tozero"},
        "hovermode": "closest",
    }
    return {"data": traces, "layout": {**layout, "yaxis": {"autorange": "reversed"}}}


def waits(sides: Sequence[Side], range_: Range, now: datetime) -> Json:
    """Time to the first token of both, median and p95."""
    traces = []
    for side in sides:
        for name, share, dash in (("median", 0.5, "solid"), ("p95", 0.95, "dot")):
            series = [(at, tally.first_token.percentile(share)) for at, tally in side.steps.items()]
            made = traffic.trace(series, f"{side.label} {name}", side.colour, mode="lines+markers")
            made["line"] = {**made["line"], "dash": dash}
            traces.append(made)
    return traffic.figure(traces, "s to the first token", range_, now)


def speed(sides: Sequence[Side], range_: Range, now: datetime) -> Json:
    """Median tokens/s of one answer of both, and what their plans promise."""
    traces = []
    for side in sides:
        series = [(at, tally.answer_rate.percentile(0.5)) for at, tally in side.steps.items()]
        traces.append(traffic.trace(series, side.label, side.colour, mode="lines+markers"))
        predicted = side.predicted_answer_rate()
        if predicted:
            ends: traffic.Series = [(now - range_.span, predicted), (now, predicted)]
            promise = traffic.trace(ends, f"{side.label} planned{with_all(side.replica.slots)}", side.colour)
            promise["line"] = {**promise["line"], "width": 1.3, "dash": "dash"}
            traces.append(promise)
    return traffic.figure(traces, "tokens/s", range_, now)


def tables(figures_: dict[str, Json]) -> dict[str, Json]:
    """The same numbers as tables; the bars turned so that a replica is a row."""
    bars = figures_["split"]["data"]
    rows = [
        [label, *(traffic.count(series["x"][number]) for series in bars)]
        for number, label in enumerate(bars[0]["y"])
    ]
    turned = {"columns": ["Replica", *(f"{series['name']}, s" for series in bars)], "rows": rows}
    return {"split": turned} | {name: traffic.table_of(figures_[name]) for name in ("waits", "speed")}

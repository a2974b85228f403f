"""Two plan pages beside each other: their numbers, their inputs and what is known of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from planner.charts.tiles import tile_text

Json = dict[str, Any]
MEASURED = {"devices": "What is known of the devices", "links": "Links"}


def comparison_rows(left: Json, right: Json) -> list[Json]:
    """Headline numbers and inputs, the differing ones marked; what a number is for stays with it."""
    headline = [
        _row(a["label"], tile_text(a), tile_text(b), is_headline=True, notes=(a["hint"], b["hint"]))
        for a, b in zip(left["tiles"], right["tiles"], strict=True)
    ]
    return [*headline, *(_row(*pair) for pair in _inputs(left, right))]


def detail_rows(left: Json, right: Json) -> list[Json]:
    """What limits two plans, how good they are known to be, how busy they get and how fast their replicas are."""
    a, b = _details(left), _details(right)
    return [_row(label, a.get(label, "–"), b.get(label, "–")) for label in dict.fromkeys([*a, *b])]


def differing_inputs(left: Json, right: Json, clusters: tuple[Json, Json]) -> list[str]:
    """Names of the inputs that two plans do not share, those too that a page does not list."""
    told = [label for label, a, b in _inputs(left, right) if a != b]
    if "Devices" in told:
        return told
    return told + [label for key, label in MEASURED.items() if clusters[0][key] != clusters[1][key]]


def _row(
    label: str, left: str, right: str, *, is_headline: bool = False, notes: tuple[str, str] = ("", "")
) -> Json:
    return {
        "label": label,
        "left": left,
        "right": right,
        "left_note": notes[0],
        "right_note": notes[1],
        "differs": left != right,
        "is_headline": is_headline,
    }


def _inputs(left: Json, right: Json) -> Iterator[tuple[str, str, str]]:
    for (label, a), (_, b) in zip(left["inputs"], right["inputs"], strict=True):
        yield label, a, b


def _details(page: Json) -> dict[str, str]:
    limit = page["plan"]["bottleneck"] or {}
    busy = {f"Busy: {row['label'].lower()}": row["text"] for row in page["utilisation"]}
    speeds = {f"Replica {row['number']}": _speed(row) for row in page["rows"]}
    return {"What limits it": limit.get("text", "–"), "Proof": page["proof"]["title"], **busy, **speeds}


def _speed(row: Json) -> str:
    numbers = [f"{number['label'].lower()} {number['text']}" for number in row["numbers"]]
    return ", ".join([row["role_label"], *numbers])

"""What a plan's page says about the plans of other planners, and beside another plan."""

from __future__ import annotations

from typing import Any

import pytest

from inventory.core.quantities import counted, seconds_text
from planner.charts import (
    baseline_curves,
    change_sentence,
    comparison_rows,
    wait_curve,
    waiting,
    waiting_table,
    worth_row,
)
from planner.charts.facts import baseline_note, is_relaxed, proof, refusal_facts, verdict
from planner.charts.replica_table import replica_table
from planner.charts.tiles import tile, waits_hint
from planner.models import Origin


@pytest.mark.parametrize(
    ("wait", "holds_floor", "said"),
    [(20.0, True, ""), (9.98, True, ""), (4.0, True, "do not allow"), (4.0, False, "breaks the floor")],
)
def test_a_baseline_that_waits_less_tells_what_it_breaks(wait: float, holds_floor: bool, said: str) -> None:
    note = baseline_note({"max_wait_seconds": wait, "holds_floor": holds_floor}, own_seconds=10.0)
    assert said in note
    assert bool(note) == bool(said)


def test_a_comparison_gives_each_number_its_unit() -> None:
    sides: list[dict[str, Any]] = [
        {"tiles": [tile("Longest wait", text, "", ""), tile("Requests at once", "4", "", "")], "inputs": []}
        for text in ("47.1 s", "1 min")
    ]
    rows = comparison_rows(*sides)
    assert [(row["left"], row["right"], row["differs"]) for row in rows] == [
        ("47.1 s", "1 min", True),
        ("4", "4", False),
    ]


@pytest.mark.parametrize(
    ("shortfall", "unit", "said"),
    [(1, "replicas", "1 replica"), (2, "devices", "2 devices"), (1200, "devices", "1,200 devices")],
)
def test_what_is_missing_is_counted_in_words(shortfall: int, unit: str, said: str) -> None:
    assert refusal_facts({"limit": "replicas", "shortfall": shortfall, "unit": unit})["missing"] == said


def test_one_is_said_as_one_and_thousands_are_set_apart() -> None:
    assert [counted(count, "block") for count in (0, 1, 12_345)] == ["0 blocks", "1 block", "12,345 blocks"]
    assert [counted(count, "entry", "entries") for count in (1, 2)] == ["1 entry", "2 entries"]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (1e-12, "under 1 ns"),
        (2e-8, "20 ns"),
        (2e-7, "0.2 µs"),
        (60.0, "1 min"),
        (97.0, "1 min 37 s"),
        (3600.0, "1 h"),
        (86_400.0, "1 d"),
        (90_000.0, "1 d 1 h"),
        (86_400_000_000.0, "1,000,000 d"),
    ],
)
def test_times_of_all_sizes_are_said_without_idle_digits(seconds: float, said: str) -> None:
    assert seconds_text(seconds) == said


def test_a_tile_keeps_a_time_of_two_units_in_one_piece() -> None:
    assert [tile("", text, "", "")["value"] for text in ("1 min 37 s", "47.1 s", "4")] == [
        "1 min 37 s",
        "47.1",
        "4",
    ]


def test_two_plans_have_a_verdict() -> None:
    assert verdict(97.0, 86.0) == "The longest wait of the second is 11 s shorter."
    assert verdict(0.0, 0.001) == "Their longest waits are the same."


def test_waiting_curves_of_other_planners_stand_beside_the_plan_in_chart_and_table() -> None:
    found = {"feasible": True, "holds_floor": True, "max_wait_seconds": 20.04}
    baselines = {
        "a": {"label": "Slow", **found, "wait_curve_seconds": [0.0, 10.0, 20.0]},
        "b": {
            "label": "Greedy",
            **found,
            "holds_floor": False,
            "max_wait_seconds": 2.0,
            "wait_curve_seconds": [0.0, 1.0, 2.0],
        },
        "c": {"label": "Of an earlier version", **found},
        "d": {"label": "None", "feasible": False},
    }
    own = wait_curve([float(seconds) for seconds in range(1000)])
    curves = {"This plan": own, **baseline_curves({"baselines": baselines})}
    assert list(curves) == ["This plan", "Slow", "Greedy (breaks the floor)"]
    assert len(own) == 101 and own[-1] == 999.0
    lines = waiting(curves)["data"]
    assert curves["Slow"][-1] == 20.04
    assert lines[1]["x"] == [0.0, 50.0, 100.0]
    assert len({line["line"]["dash"] for line in lines}) == 3
    table = waiting_table(curves)
    assert table["columns"] == ["Share of the requests", *curves]
    assert table["rows"][5][2:] == ["10 s", "1 s"]


OWN = {
    "max_wait_seconds": 1.0,
    "decode_tokens_per_second": 752.0,
    "prefill_tokens_per_second": 900.0,
    "ttft_seconds": 1.0,
    "utilisation": {"prefill": 0.5, "network": 0.1, "decode": 0.8},
}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "no longer wait, no less capacity, first tokens as early"),
        (
            {"decode_tokens_per_second": 581.0},
            "no longer wait, but capacity falls from 752 tokens/s to 581 tokens/s",
        ),
        (
            {"utilisation": {"prefill": 0.5, "network": 0.1, "decode": 1.2}},
            "no longer wait, but requests ask for 1.2 times what is left",
        ),
        ({"ttft_seconds": 2.0}, "no longer wait, but the first token comes after 2 s instead of 1 s"),
        ({"max_wait_seconds": 3.0, "prefill_tokens_per_second": 450.0}, "2 s longer, prompt capacity falls"),
        ({"max_wait_seconds": 0.0, "ttft_seconds": 2.0}, "1 s shorter, but the first token comes after 2 s"),
    ],
)
def test_a_device_that_is_left_out_costs_more_than_waits(changes: dict[str, Any], said: str) -> None:
    assert worth_row("Dev.1", OWN | changes, "", None, OWN)["loss"].startswith(said)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "no gain found"),
        (
            {"decode_tokens_per_second": 1123.0, "ttft_seconds": 0.5},
            "as long a wait, capacity rises from 752 tokens/s to 1,123 tokens/s and the first token comes after 500 ms",
        ),
        (
            {"decode_tokens_per_second": 1123.0, "ttft_seconds": 2.0},
            "tokens/s, but the first token comes after",
        ),
        ({"max_wait_seconds": 0.25}, "750 ms shorter"),
        ({"max_wait_seconds": 3.0, "decode_tokens_per_second": 1123.0}, "no gain found"),
    ],
)
def test_a_second_device_is_judged_by_the_same_measures(changes: dict[str, Any], said: str) -> None:
    assert said in worth_row("Dev.1", None, "", OWN | changes, OWN)["gain"]


def test_the_verdict_of_a_what_if_names_what_changes_beside_the_wait() -> None:
    def plan(tpot_seconds: float, **changes: float) -> dict[str, Any]:
        return {"predicted": OWN | changes, "replicas": [{"tpot_seconds": tpot_seconds}]}

    now = plan(0.1, max_wait_seconds=0.0, ttft_seconds=0.379)
    assert change_sentence(now, now) == "Longest wait 0 s, as planned"
    slower = plan(0.2, max_wait_seconds=0.0, ttft_seconds=0.777, decode_tokens_per_second=780.0)
    assert change_sentence(now, slower) == (
        "Longest wait 0 s, as planned; first token later, after 777 ms instead of 379 ms; "
        "answers slower, at least 5 tokens/s instead of 10 tokens/s"
    )
    larger = plan(0.1, max_wait_seconds=2.0, ttft_seconds=0.379, decode_tokens_per_second=1123.0)
    assert change_sentence(now, larger) == (
        "Longest wait 2 s instead of 0 s; more capacity, 1,123 tokens/s instead of 752 tokens/s"
    )


@pytest.mark.parametrize(
    ("p95", "longest", "said"),
    [
        (0.0, 0.0, "nobody waits"),
        (15.84, 15.84, "20 of 20 within 15.8 s"),
        (3.0, 9.0, "19 of 20 within 3 s"),
    ],
)
def test_waits_of_nearly_all_requests_are_said_once(p95: float, longest: float, said: str) -> None:
    assert waits_hint({"p95_wait_seconds": p95, "max_wait_seconds": longest}) == said


def test_a_proof_says_which_quantity_it_is_about_and_what_the_simulation_decided() -> None:
    facts = {"method": "exact", "optimal": True, "gap": 0.0, "bound": 37.6, "evaluations": 3, "value": 37.6}
    formula = {"proof": facts | {"objective": "longest wait by the formula"}}
    told = proof(formula)
    assert told["title"] == "Proven best by the formula"
    assert (
        "longest wait by the formula (37.6 s). Among plans that are equal in this the simulation"
        in told["text"]
    )
    assert "simulation" not in proof(formula, Origin.STOPPED)["text"]
    none = proof({"proof": facts | {"value": 0.0, "bound": 0.0, "objective": "longest wait by the formula"}})
    assert "found by the method “exact”, proven because no wait is shorter than none" in none["text"]
    simulated = proof({"proof": facts | {"objective": "longest wait in the simulation"}})
    assert simulated["title"] == "Proven best"
    apart = proof(
        {"proof": facts | {"optimal": False, "gap": 2.0, "objective": "finishing time by the formula"}}
    )
    assert apart["text"].startswith(
        "No plan is more than 2 s below this one's finishing time by the formula (37.6 s)."
    )


@pytest.mark.parametrize(
    ("wait", "load", "relaxed"), [(0.0, 0.001, True), (0.0, 3.0, False), (5.0, 0.5, False)]
)
def test_what_binds_is_no_alarm_where_nobody_waits_and_nothing_is_over(
    wait: float, load: float, relaxed: bool
) -> None:
    predicted = OWN | {"max_wait_seconds": wait, "utilisation": {"prefill": load, "decode": 0.0}}
    assert is_relaxed({"predicted": predicted}) == relaxed


def test_a_plan_of_many_replicas_has_a_table_of_them_first() -> None:
    replica = {
        "role": "decode",
        "slots": 4,
        "tpot_seconds": 0.1,
        "decode_tokens_per_second": 40.0,
        "stages": [{"device": f"Dev.{number}"} for number in range(6)],
    }
    assert replica_table({"replicas": [replica] * 12}) == []
    row = replica_table({"replicas": [replica] * 13})[12]
    assert row["devices"] == "Dev.0, Dev.1, Dev.2, Dev.3 and 2 others"
    assert (row["number"], row["slots"], row["each"]) == (13, 4, "10 tokens/s")

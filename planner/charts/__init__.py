"""Plans and runs as pictures and words: view models and plotly figures."""

from planner.charts.changes import change_sentence
from planner.charts.comparison import comparison_rows, detail_rows, differing_inputs
from planner.charts.facts import (
    baseline_waits,
    fleet_rows,
    input_rows,
    is_relaxed,
    plan_page,
    refusal_facts,
    run_summary,
    verdict,
    workload_rows,
)
from planner.charts.figures import (
    baseline_curves,
    convergence,
    convergence_table,
    wait_curve,
    waiting,
    waiting_table,
)
from planner.charts.stages import stage_rows
from planner.charts.tiles import tile_text
from planner.charts.words import SEARCH
from planner.charts.worth import worth_row

__all__ = [
    "SEARCH",
    "baseline_curves",
    "baseline_waits",
    "change_sentence",
    "comparison_rows",
    "convergence",
    "convergence_table",
    "detail_rows",
    "differing_inputs",
    "fleet_rows",
    "input_rows",
    "is_relaxed",
    "plan_page",
    "refusal_facts",
    "run_summary",
    "stage_rows",
    "tile_text",
    "verdict",
    "wait_curve",
    "waiting",
    "waiting_table",
    "workload_rows",
    "worth_row",
]

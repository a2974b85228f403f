"""Plans and runs as pictures and words: view models and plotly figures."""

from planner.charts.facts import (
    baseline_waits,
    comparison_rows,
    input_rows,
    plan_page,
    refusal_facts,
    run_summary,
    tile_text,
    workload_rows,
    worth_row,
)
from planner.charts.figures import convergence, convergence_table, waiting, waiting_table
from planner.charts.stages import stage_rows

__all__ = [
    "baseline_waits",
    "comparison_rows",
    "convergence",
    "convergence_table",
    "input_rows",
    "plan_page",
    "refusal_facts",
    "run_summary",
    "stage_rows",
    "tile_text",
    "waiting",
    "waiting_table",
    "workload_rows",
    "worth_row",
]

"""Plans and runs as pictures and words: view models and plotly figures."""

from planner.charts.facts import (
    headline,
    memory_rows,
    proof,
    run_summary,
    utilisation_rows,
    workload_rows,
)
from planner.charts.figures import convergence, waiting
from planner.charts.stages import stage_rows

__all__ = [
    "convergence",
    "headline",
    "memory_rows",
    "proof",
    "run_summary",
    "stage_rows",
    "utilisation_rows",
    "waiting",
    "workload_rows",
]

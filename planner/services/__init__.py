"""Plan runs, what a fleet could hold, and what would be if."""

from planner.services.feasibility import Feasibility, feasibility
from planner.services.runs import (
    EXAMPLES,
    TASK,
    Example,
    job_id_of,
    plan_inventory,
    points_of,
    record_run,
    run_snapshot,
    start_run,
)

__all__ = [
    "EXAMPLES",
    "TASK",
    "Example",
    "Feasibility",
    "feasibility",
    "job_id_of",
    "plan_inventory",
    "points_of",
    "record_run",
    "run_snapshot",
    "start_run",
]

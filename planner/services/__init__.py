"""Plan runs, what a fleet could hold, and what would be if."""

from planner.services.alternatives import Alternatives, alternatives
from planner.services.feasibility import Feasibility, feasibility
from planner.services.files import import_run, plan_for, read_document, read_problem
from planner.services.inputs import Changes, Inputs, changed_inputs
from planner.services.measurements import Imported, import_measurements
from planner.services.runs import (
    EXAMPLES,
    SMALL_EXAMPLE,
    TASK,
    Example,
    RunInUse,
    cluster_of,
    job_id_of,
    plan_inventory,
    points_of,
    record_run,
    removal_refusal,
    remove_run,
    run_snapshot,
    start_run,
)
from planner.services.simulated import has_simulated_waits, one_burst, plan_of
from planner.services.what_if import Superseded, WhatIf, what_if
from planner.services.why import WORTH_DEVICES, Worth, idle_reasons, margin_sentences, worth_of_devices

__all__ = [
    "EXAMPLES",
    "SMALL_EXAMPLE",
    "TASK",
    "WORTH_DEVICES",
    "Alternatives",
    "Changes",
    "Example",
    "Feasibility",
    "Imported",
    "Inputs",
    "RunInUse",
    "Superseded",
    "WhatIf",
    "Worth",
    "alternatives",
    "changed_inputs",
    "cluster_of",
    "feasibility",
    "has_simulated_waits",
    "idle_reasons",
    "import_measurements",
    "import_run",
    "job_id_of",
    "margin_sentences",
    "one_burst",
    "plan_for",
    "plan_inventory",
    "plan_of",
    "points_of",
    "read_document",
    "read_problem",
    "record_run",
    "removal_refusal",
    "remove_run",
    "run_snapshot",
    "start_run",
    "what_if",
    "worth_of_devices",
]

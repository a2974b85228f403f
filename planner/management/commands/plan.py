"""Find the best plan for a cluster file."""

import json
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import numpy as np

from planner import charts, services
from planner.core.errors import BadDocument, NoFeasiblePlan
from planner.core.forecast import waiting_curve
from planner.core.objective import OBJECTIVES, WAIT
from planner.core.plan import Plan
from planner.core.problem import Problem
from planner.core.search import METHODS, SearchSettings, search
from planner.management.json_command import BAD_INPUT, JsonCommand

NO_PLAN = 3


class Command(JsonCommand):
    help = "Find the best plan for a cluster file (e2llm-cluster/1) and print it (e2llm-plan/1)."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("cluster", type=Path, metavar="CLUSTER.json")
        parser.add_argument("--method", choices=METHODS, default="auto")
        parser.add_argument("--objective", choices=OBJECTIVES, default=WAIT)
        parser.add_argument("--seed", type=int, help="default: the policy's seed")
        parser.add_argument("--json", action="store_true", help="one JSON document on stdout, nothing else")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            problem = services.read_problem(options["cluster"], options["seed"])
            plan = self.search(problem, SearchSettings(options["method"], options["objective"]))
        except BadDocument as error:
            self.give_up(error.to_dict(), error.problems, BAD_INPUT, as_json=options["json"])
        except NoFeasiblePlan as error:
            self.give_up(error.to_dict(), [error.text, error.remedy], NO_PLAN, as_json=options["json"])
        self.stdout.write(json.dumps(plan.to_dict(), indent=1) if options["json"] else summary(plan, problem))

    def search(self, problem: Problem, settings: SearchSettings) -> Plan:
        rng = np.random.default_rng(problem.policy.seed)
        step, phase = None, ""
        for step in search(problem, settings, rng):
            if step.phase != phase:
                phase = step.phase
                self.stderr.write(f"{step.fraction:4.0%} {step.message}")
        assert step is not None and step.best_plan is not None, "search ends with a plan or raises"
        return step.best_plan


def summary(plan: Plan, problem: Problem) -> str:
    """The plan in a few lines for a terminal."""
    page = charts.plan_page(plan.to_dict(), problem.to_dict(), burst=waiting_curve(problem, plan))
    lines = [
        f"{tile['label']:<27} {charts.tile_text(tile)} {tile['hint'] and '(' + tile['hint'] + ')'}"
        for tile in page["tiles"]
    ]
    for row in page["rows"]:
        numbers = ", ".join(f"{number['label'].lower()} {number['text']}" for number in row["numbers"])
        lines.append(f"\n{row['role_label']} replica {row['number']}: {numbers}")
        for stage in row["stages"]:
            master = " (master)" if stage["is_master"] else ""
            split = f"{stage['gpu_blocks']} GPU + {stage['cpu_blocks']} CPU"
            took = f"{stage['seconds_text']} {stage['per_text']}"
            lines.append(f"  {stage['device']}{master}: {stage['blocks_text']}, {split}, {took}")
    if plan.idle:
        lines.append(f"\nIdle: {', '.join(plan.idle)}")
    return "\n".join(
        [*lines, f"\n{plan.bottleneck.text}", f"{page['proof']['title']}. {page['proof']['text']}"]
    )

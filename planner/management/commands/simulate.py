"""Serve a burst of requests with a plan, in simulation."""

import json
from argparse import ArgumentParser
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from inventory.core.quantities import rate_text, seconds_text
from planner import services
from planner.core.burst import sample
from planner.core.errors import BadDocument
from planner.core.servers import servers
from planner.core.simulate import LATE, ROUTERS, Simulation, simulate
from planner.management.json_command import BAD_INPUT, JsonCommand

MOST_REQUESTS = 1_000_000


class Command(JsonCommand):
    help = "Simulate a plan (e2llm-plan/1) on its cluster file (e2llm-cluster/1), request by request."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("cluster", type=Path, metavar="CLUSTER.json")
        parser.add_argument("plan", type=Path, metavar="PLAN.json")
        parser.add_argument("--router", choices=ROUTERS, default=LATE)
        parser.add_argument("--requests", type=int, help="default: the workload's")
        parser.add_argument("--seed", type=int, help="default: the policy's seed")
        parser.add_argument("--json", action="store_true", help="one JSON document on stdout, nothing else")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            problem = services.read_problem(options["cluster"], options["seed"])
            plan = services.plan_for(problem, services.read_document(options["plan"]))
            requests = problem.workload.requests if options["requests"] is None else options["requests"]
            if not 1 <= requests <= MOST_REQUESTS:
                raise BadDocument([f"--requests: {requests} is not between 1 and {MOST_REQUESTS:,}"])
        except BadDocument as error:
            self.give_up(error.to_dict(), error.problems, BAD_INPUT, as_json=options["json"])
        seed = problem.policy.seed
        drawn = sample(replace(problem.workload, requests=requests), np.random.default_rng([seed, 0]))
        told = document(simulate(servers(problem, plan), drawn, options["router"]))
        pace = max(replica.tpot_seconds for replica in plan.replicas)  # prefill replicas have none
        told["guaranteed_tokens_per_second"] = 1.0 / pace
        told = {"router": options["router"], "requests": requests, "seed": seed, **told}
        self.stdout.write(json.dumps(told, indent=1) if options["json"] else summary(told))


def document(simulation: Simulation) -> dict[str, float]:
    return {
        "max_wait_seconds": simulation.max_wait_seconds,
        "mean_wait_seconds": simulation.mean_wait_seconds,
        "p95_wait_seconds": simulation.p95_wait_seconds,
        "mean_ttft_seconds": float(simulation.ttft_seconds.mean()),
        "slowest_tokens_per_second": simulation.slowest_tokens_per_second,
        "finished_seconds": float(simulation.finished_seconds.max()),
    }


def summary(told: dict[str, Any]) -> str:
    slowest = rate_text(told["slowest_tokens_per_second"])
    guaranteed = rate_text(told["guaranteed_tokens_per_second"])
    return "\n".join(
        [
            f"{told['requests']} requests, router {told['router']}, seed {told['seed']}",
            f"Longest wait         {seconds_text(told['max_wait_seconds'])}",
            f"Mean wait            {seconds_text(told['mean_wait_seconds'])}",
            f"19 of 20 wait below  {seconds_text(told['p95_wait_seconds'])}",
            f"First token after    {seconds_text(told['mean_ttft_seconds'])}",
            f"Slowest answer       {slowest} (in this burst, over the whole answer)",
            f"Guaranteed answer    {guaranteed} (with all slots busy, by the plan)",
            f"All done after       {seconds_text(told['finished_seconds'])}",
        ]
    )

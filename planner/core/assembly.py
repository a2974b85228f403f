"""From chosen options and devices to a plan with all its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from planner.core.catalogue import Catalogue, Option
from planner.core.congestion import paper_wait
from planner.core.explain import assumptions, binding_stage, with_queue
from planner.core.memory import stage_bytes
from planner.core.objective import WAIT, Objective
from planner.core.plan import Plan, Predicted, Proof, Replica, Stage
from planner.core.roles import score
from planner.core.slots import DECODE, MIXED, PREFILL

Choice = tuple[tuple[int, ...], Option]  # devices of a replica and how it is run


def build_plan(catalogue: Catalogue, choices: Sequence[Choice], proof: Proof, seed: int) -> Plan:
    """The plan for these replicas, waits from the closed form; prefill first, then the most slots."""
    problem = catalogue.problem
    rank = {PREFILL: 0, DECODE: 1, MIXED: 1}
    ordered = sorted(choices, key=lambda c: (rank[c[1].role], -c[1].slots, -c[1].requests_per_second, c[0]))
    replicas = tuple(build_replica(catalogue, devices, option) for devices, option in ordered)
    used = {device for devices, _ in choices for device in devices}
    predicted = predict(catalogue, [option for _, option in ordered])
    return Plan(
        mode="mixed" if ordered[0][1].role == MIXED else "disaggregated",
        replicas=replicas,
        idle=tuple(device.name for k, device in enumerate(problem.devices) if k not in used),
        predicted=predicted,
        bottleneck=with_queue(
            binding_stage(problem, replicas, predicted.utilisation), predicted.max_wait_seconds
        ),
        proof=proof,
        assumptions=assumptions(problem),
        seed=seed,
        input_sha256=problem.input_sha256,
    )


def build_replica(catalogue: Catalogue, devices: tuple[int, ...], option: Option) -> Replica:
    """Devices are matched to the option's kinds; equal kinds are interchangeable."""
    problem = catalogue.problem
    ordered = sorted(devices, key=lambda device: (problem.kind_of[device], device))
    stages = tuple(_stage(catalogue, option, position, device) for position, device in enumerate(ordered))
    prompt, answer = problem.workload.input_tokens, problem.workload.output_tokens
    prefill_speed = prompt * option.bare_requests_per_second
    if option.role == MIXED:
        prefill_speed = prompt / option.prefill_seconds
    return Replica(
        role=option.role,
        slots=option.slots,
        micro_batch=option.micro_batch,
        stages=stages,
        bottleneck_seconds=max(stage.seconds for stage in stages),
        pass_seconds=option.pass_seconds,
        tpot_seconds=option.tpot_seconds,
        requests_per_second=option.requests_per_second,
        prefill_tokens_per_second=0.0 if option.role == DECODE else prefill_speed,
        decode_tokens_per_second=0.0 if option.role == PREFILL else answer * option.bare_requests_per_second,
    )


def _stage(catalogue: Catalogue, option: Option, position: int, device: int) -> Stage:
    problem, costs = catalogue.problem, catalogue.costs
    n, is_master = option.counts[position], position == option.master
    role = PREFILL if option.role == PREFILL else DECODE
    batch = problem.workload.input_tokens if role == PREFILL else option.micro_batch
    table = costs.table(option.group[position], role, (option.slots,), (float(batch),))
    on_gpu = int(table.gpu_blocks[int(is_master), 0, n])
    here = problem.devices[device]
    room = stage_bytes(costs.sums, problem.model, here, option.slots, (on_gpu, n - on_gpu), is_master)
    return Stage(
        device=here.name,
        master=is_master,
        gpu_blocks=on_gpu,
        cpu_blocks=n - on_gpu,
        seconds=float(table.seconds[int(is_master), 0, n]),
        gpu_bytes=room.gpu_bytes,
        gpu_limit_bytes=room.gpu_limit_bytes,
        ram_bytes=room.ram_bytes,
    )


def predict(catalogue: Catalogue, options: Sequence[Option]) -> Predicted:
    """Closed-form figures of a whole plan; the simulator replaces the waits."""
    problem = catalogue.problem
    workload, objective = problem.workload, Objective(WAIT, problem)
    prefill = [option for option in options if option.role == PREFILL]
    serving = [option for option in options if option.role != PREFILL]
    first = prefill or serving
    x_p = sum(option.requests_per_second for option in prefill) if prefill else float("inf")
    x_d = sum(option.requests_per_second for option in serving)
    slots = sum(option.slots for option in serving)
    wait = float(objective.seconds(x_p, x_d, slots))
    ranked = score(options, wait, objective)
    queue = ranked.queue_seconds if isfinite(ranked.queue_seconds) and wait <= 0 else wait / 2
    ps = sum(workload.input_tokens * option.bare_requests_per_second for option in first)
    ds = sum(workload.output_tokens * option.bare_requests_per_second for option in serving)
    tpot = sum(option.requests_per_second * option.tpot_seconds for option in serving) / x_d
    arrival = workload.arrival_seconds
    moved = min(_port_rate(prefill), _port_rate(serving))
    return Predicted(
        prefill_tokens_per_second=ps,
        decode_tokens_per_second=ds,
        max_wait_seconds=wait,
        mean_wait_seconds=queue,
        p95_wait_seconds=wait * 0.95,
        ttft_seconds=ranked.ttft_seconds + queue + tpot,
        tpot_seconds=tpot,
        utilisation={
            "prefill": 1.0 / (arrival * sum(option.bare_requests_per_second for option in first)),
            "network": 1.0 / (arrival * moved),
            "decode": 1.0 / (arrival * sum(option.bare_requests_per_second for option in serving)),
        },
        paper_wait_seconds=float(
            paper_wait(workload.input_tokens, workload.output_tokens, ps, ds, workload.arrival_seconds)
        ),
    )


def _port_rate(options: Sequence[Option]) -> float:
    """KV caches per second that the ports of these replicas carry."""
    seconds = [option.handover_seconds for option in options]
    return sum(1.0 / one for one in seconds) if seconds and min(seconds) > 0 else float("inf")


def closed_form_proof(method: str, evaluations: int) -> Proof:
    """A proof that claims nothing: the best that this method found."""
    return Proof(method, optimal=False, bound=None, gap=None, evaluations=evaluations)

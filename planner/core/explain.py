"""What binds a plan, in sentences with numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from inventory.core.quantities import counted, seconds_text
from planner.core.latency import hop_count, interpolate, link_seconds
from planner.core.plan import Bottleneck, Replica, Stage
from planner.core.problem import Device, Problem

PHASE_WORDS = {"prefill": "Prompt processing", "network": "Moving the KV cache", "decode": "Token generation"}
MIXED_WORDS = "Serving, prompts and answers together,"
QUEUE_GROWS, BURST_ENDS = ", so the queue grows", ", but the burst ends before a queue forms"
QUEUE_SECONDS = 0.02  # shorter waits count as none, as in the choice among plans
HARDLY_ANY = 0.01


def bytes_text(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def load_sentence(work: str, load: float) -> str:
    """How much of what it can do is asked of it, up to the colon."""
    if load < HARDLY_ANY:
        return f"{work} would be the first limit, though less than 1 % of what it can do is asked"
    if load <= 1:
        return f"{work} is busiest, at {load * 100:.0f} % of what it can do"
    times = f"{load:.2f}" if load < 2 else f"{load:.1f}" if load < 10 else f"{load:,.0f}"
    return f"The workload asks for {times} times what {work[0].lower()}{work[1:]} can do{QUEUE_GROWS}"


def with_queue(bottleneck: Bottleneck, longest_wait_seconds: float) -> Bottleneck:
    """The bottleneck with what becomes of the queue: a short burst may end before there is one."""
    found = (BURST_ENDS, QUEUE_GROWS) if longest_wait_seconds >= QUEUE_SECONDS else (QUEUE_GROWS, BURST_ENDS)
    return replace(bottleneck, text=bottleneck.text.replace(*found))


def binding_stage(problem: Problem, replicas: Sequence[Replica], utilisation: dict[str, float]) -> Bottleneck:
    """The slowest stage of the replica that carries most of the busiest phase."""
    phase = max(("decode", "prefill", "network"), key=lambda name: utilisation[name])
    if all(replica.role == "mixed" for replica in replicas):
        phase = "decode"
    role = "prefill" if phase in ("prefill", "network") else "decode"
    inside = [k for k, replica in enumerate(replicas) if replica.role in (role, "mixed")]
    index = max(inside, key=lambda k: (replicas[k].requests_per_second, -k))
    replica = replicas[index]
    stage = max(replica.stages, key=lambda one: one.seconds)
    work = MIXED_WORDS if replica.role == "mixed" else PHASE_WORDS[phase]
    head = f"{load_sentence(work, utilisation[phase])}: "
    if phase == "network":
        size = problem.model.handoff_bytes(problem.workload.input_tokens)
        seconds = 1.0 / replica.requests_per_second
        text = f"the port of {replica.master.device} carries {bytes_text(size)} for each request."
        return Bottleneck(index, replica.master.device, phase, seconds, head + text)
    text = head + _stage_sentence(problem, replica, stage) + _both_phases(problem, replica)
    return Bottleneck(index, stage.device, phase, stage.seconds, text)


def _both_phases(problem: Problem, replica: Replica) -> str:
    """Where the time of a mixed replica goes, which its token steps alone do not show."""
    if replica.role != "mixed":
        return ""
    prompt = problem.workload.input_tokens / replica.prefill_tokens_per_second
    answer = problem.workload.output_tokens * replica.tpot_seconds
    return (
        f" A request takes {seconds_text(prompt)} for its prompt and {seconds_text(answer)} for its answer."
    )


def _stage_sentence(problem: Problem, replica: Replica, stage: Stage) -> str:
    device = next(one for one in problem.devices if one.name == stage.device)
    of = f"{seconds_text(stage.seconds)} of {seconds_text(replica.pass_seconds)}"
    what = (
        "each prompt"
        if replica.role == "prefill"
        else f"each step of {counted(replica.micro_batch, 'token')}"
    )
    if stage.cpu_blocks:
        slow = _cpu_seconds(problem, device, replica, stage)
        return (
            f"{stage.device} takes {of} in {what}, {seconds_text(slow)} of them for its "
            f"{counted(stage.cpu_blocks, 'block')} in RAM."
        )
    hops = _hop_seconds(problem, replica)
    if hops > stage.seconds:
        return f"the network takes {seconds_text(hops)} of {seconds_text(replica.pass_seconds)} in {what}."
    return f"{stage.device} takes {of} in {what} for its {counted(stage.gpu_blocks, 'block')}."


def _cpu_seconds(problem: Problem, device: Device, replica: Replica, stage: Stage) -> float:
    is_prefill = replica.role == "prefill"
    table = device.prefill if is_prefill else device.decode
    batch = problem.workload.input_tokens if is_prefill else replica.micro_batch
    assert table.cpu_block_seconds is not None, "blocks in RAM need a measured CPU time"
    return stage.cpu_blocks * float(interpolate(table, table.cpu_block_seconds, np.array(float(batch))))


def _hop_seconds(problem: Problem, replica: Replica) -> float:
    tokens = problem.workload.input_tokens if replica.role == "prefill" else replica.micro_batch
    size = np.array(tokens * problem.model.embedding_length * 4.0)
    hops = hop_count(len(replica.stages), problem.policy.topology)
    return hops * float(link_seconds(size, problem.default_link))


def choice_sentence(simulated: int, ties: int, *, is_exhausted: bool) -> str:
    """How the simulation came to choose a plan among those that the formula ranks."""
    if is_exhausted:
        return (
            f"The waits are those of the simulation: of all {counted(simulated, 'plan')} there are, "
            "this one waits least."
        )
    rest = (
        f"{ties} of them with no longer wait by the formula than this one"
        if ties > 1
        else "and this one is also the best of them by the formula"
    )
    return f"The waits are those of the simulation, which chose among {counted(simulated, 'plan')}, {rest}."


def assumptions(problem: Problem) -> tuple[str, ...]:
    """What the numbers of a plan rest on."""
    policy, workload = problem.policy, problem.workload
    runtime = {
        "serial": "One decode batch walks the stages in turn (llama.cpp today).",
        "overlapped": "Several micro-batches are under way at once, as in the paper.",
    }[policy.runtime]
    topology = {
        "star": "Every worker hands its result back to the master: two hops for each worker.",
        "chain": "Stages hand on to the next stage: one hop between neighbours.",
    }[policy.topology]
    texts = [
        runtime,
        topology,
        f"{counted(workload.requests, 'request')}, one every {seconds_text(workload.arrival_seconds)}, "
        f"{workload.input_tokens} tokens in and {workload.output_tokens} out.",
        f"Every request gets at least {policy.min_tokens_per_second:g} tokens/s.",
    ]
    if not policy.handover:
        texts.append(
            "Moving the KV cache between replicas costs nothing, as the paper assumes: a plan to compare with, "
            "for no network moves it in no time."
        )
    if problem.model.block_kinds:
        texts.append("Blocks differ: a stage is sized for the window of its blocks that needs most memory.")
    return tuple(texts)

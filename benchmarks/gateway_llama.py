"""Real llama-servers behind the gateway, two that compute prompts and two that answer, beside one asked directly.

    python -m benchmarks.gateway_llama --llama-server PATH --model GGUF [--write]

The answers at temperature 0 must be the same text; the gateway's share of all CPU seconds is what it costs.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import sleep
from typing import Any

import httpx

from benchmarks.bare_gateway import MODEL, run
from benchmarks.gateway import ADDRESS, ROOT, cpu_seconds, free_port, process
from benchmarks.report import write_part
from serving.core.commands import Role
from serving.gateway.routes import Endpoint, Wanted
from serving.upstream import Target

RESULTS = ROOT / "docs" / "results.md"
ROLES: tuple[Role, ...] = ("prefill", "prefill", "decode", "decode")
CONTEXT_TOKENS = 1024
SLOTS = 2
SUBJECTS = ("rivers", "the moon", "bread", "bicycles", "chess", "rain", "maps", "violins")
TEXT = "A short lesson follows, and then a question about it. It is told slowly, so that nobody is lost. " * 6
LOAD_TRIES = 600


class FolderMover:
    """Moves slot files between the folders of this machine's servers."""

    async def pull(self, source: Endpoint, destination: Endpoint, filename: str) -> int:
        target = Path(destination.slot_folder) / filename
        shutil.copyfile(Path(source.slot_folder) / filename, target)
        return target.stat().st_size

    def remove(self, endpoint: Endpoint, filename: str) -> None:
        (Path(endpoint.slot_folder) / filename).unlink(missing_ok=True)


@dataclass(frozen=True)
class Fleet:
    port: int
    gateway: int
    replicas: list[int]
    replica_ports: list[int]


@contextmanager
def fleet(llama_server: Path, model: Path, folder: Path) -> Iterator[Fleet]:
    with ExitStack() as started:
        ports = [free_port() for _ in ROLES]
        pids = []
        for port in ports:
            (folder / str(port)).mkdir()
            argv = [str(llama_server), "--model", str(model), "--host", ADDRESS, "--port", str(port)]
            argv += ["--ctx-size", str(CONTEXT_TOKENS * SLOTS), "--parallel", str(SLOTS), "--threads", "1"]
            argv += ["--slot-save-path", str(folder / str(port)), "--kv-unified", "--cache-ram", "0"]
            pids.append(started.enter_context(process([*argv, "--device", "none", "--log-disable"], port)))
        for port in ports:
            wait_until_loaded(port)
        port = free_port()
        argv = [sys.executable, "-m", "benchmarks.gateway_llama", "--serve", str(folder), str(port)]
        gateway = started.enter_context(process([*argv, *map(str, ports)], port))
        yield Fleet(port, gateway, pids, ports)


def serve(folder: str, port: str, *replica_ports: str) -> None:
    endpoints = tuple(
        Endpoint(
            number, role, SLOTS, role, Target(ADDRESS, int(one), "none"), number, f"{folder}/{one}", True, 0
        )
        for number, (role, one) in enumerate(zip(ROLES, replica_ports, strict=True), 1)
    )
    run(int(port), Wanted(1, MODEL, 0, CONTEXT_TOKENS, True, endpoints), FolderMover())


def wait_until_loaded(port: int) -> None:
    for _ in range(LOAD_TRIES):
        if httpx.get(f"http://{ADDRESS}:{port}/health", timeout=5).is_success:
            return
        sleep(0.1)
    raise SystemExit("a llama-server did not load its model within a minute")


def ask(port: int, subject: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"About {subject}. {TEXT} What is good to know about {subject}?"}]
    body = {"model": MODEL, "messages": messages, "max_tokens": 32, "temperature": 0}
    headers = {"Authorization": "Bearer k", "X-E2LLM-Timing": "1"}
    address = f"http://{ADDRESS}:{port}/v1/chat/completions"
    answer = httpx.post(address, json=body, headers=headers, timeout=120)
    return dict(answer.raise_for_status().json())


def text(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


def two_at_once(port: int) -> list[dict[str, Any]]:
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda subject: ask(port, subject), SUBJECTS))


def equals(answers: list[dict[str, Any]], texts: list[str]) -> int:
    return sum(text(answer) == plain for answer, plain in zip(answers, texts, strict=True))


def compare(one: Fleet) -> str:
    direct = [text(ask(one.replica_ports[-1], subject)) for subject in SUBJECTS]
    pids = [one.gateway, *one.replicas]
    before = [cpu_seconds([pid]) for pid in pids]
    answers = two_at_once(one.port)
    used = [cpu_seconds([pid]) - start for pid, start in zip(pids, before, strict=True)]
    equal = equals(answers, direct)
    equal_direct = equals(two_at_once(one.replica_ports[-2]), direct)
    hits = sum(answer["e2llm"]["handover"] == "hit" for answer in answers)
    share = used[0] / sum(used)
    met = equal == len(SUBJECTS) and share < 0.05
    name = f"L11: {len(SUBJECTS)} answers of two prefill and two decode replicas, two at once"
    wanted = "equal to direct answers, gateway under 5% of the CPU"
    reached = (
        f"{equal} equal ({equal_direct} when asked directly, two at once), {hits} handed over, {share:.1%}"
    )
    head = "| load | wanted | reached | |\n|---|---|---|---|\n"
    return f"{head}| {name} | {wanted} | {reached} | {'met' if met else 'missed'} |\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--llama-server", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--write", action="store_true", help="write the table into docs/results.md")
    parser.add_argument("--serve", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        return serve(*given.serve)
    with TemporaryDirectory() as folder, fleet(given.llama_server, given.model, Path(folder)) as one:
        table = compare(one)
    print(table)
    if given.write:
        write_part(RESULTS, "gateway-llama", table)
    return None


if __name__ == "__main__":
    main()

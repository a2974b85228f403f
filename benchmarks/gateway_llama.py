"""Real llama-servers behind the gateway, and the same ones asked directly: are the texts equal, what does it cost.

    python -m benchmarks.gateway_llama --llama-server PATH --model GGUF [--write]

At temperature 0 a llama-server gives the same text again only if it computes the same tokens together: which ones it
does depends on what the slot held before, and on what the other slots do. So each replica has one slot here, every
slot holds a conversation of the same beginning before each pass, and where the gateway hands a prompt over without
its last token, the direct pass prompts in the same two steps. The last row leaves that out: two slots, both busy.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
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
APART: tuple[Role, ...] = ("prefill", "prefill", "decode", "decode")
MIXED: tuple[Role, ...] = ("mixed", "mixed", "mixed", "mixed")
CONTEXT_TOKENS = 1024
SUBJECTS = ("rivers", "the moon", "bread", "bicycles", "chess", "rain", "maps", "violins")
TEXT = "A short lesson follows, and then a question about it. It is told slowly, so that nobody is lost. " * 6
LOAD_TRIES = 600
HEAD = "| replicas | texts of a direct pass again, directly | through the gateway | handed over | gateway's CPU | |\n"


class FolderMover:
    """Moves slot files between the folders of this machine's servers."""

    async def pull(self, source: Endpoint, destination: Endpoint, filename: str) -> int:
        target = Path(destination.slot_folder) / filename
        shutil.copyfile(Path(source.slot_folder) / filename, target)
        return target.stat().st_size

    def remove(self, endpoint: Endpoint, filename: str) -> None:
        (Path(endpoint.slot_folder) / filename).unlink(missing_ok=True)


@dataclass(frozen=True)
class Servers:
    """llama-servers that have loaded the model."""

    folder: str
    slots: int
    ports: list[int]
    pids: list[int]


@dataclass(frozen=True)
class Layout:
    """How a gateway uses the servers, and what is compared."""

    name: str
    roles: tuple[Role, ...]
    hands_over: bool
    concurrent: int
    must_be_equal: bool = True


LAYOUTS = (
    Layout("four mixed, four requests at once", MIXED, hands_over=False, concurrent=4),
    Layout("two prefill, two decode, hand-over off, four at once", APART, hands_over=False, concurrent=4),
    Layout("two prefill, two decode, hand-over on, two at once", APART, hands_over=True, concurrent=2),
)
BUSY_SLOTS = Layout("one mixed of two slots, two at once", ("mixed",), False, 2, must_be_equal=False)


@contextmanager
def servers(llama_server: Path, model: Path, count: int, slots: int) -> Iterator[Servers]:
    with TemporaryDirectory() as folder, ExitStack() as started:
        ports = [free_port() for _ in range(count)]
        pids = []
        for port in ports:
            (Path(folder) / str(port)).mkdir()
            argv = [str(llama_server), "--model", str(model), "--host", ADDRESS, "--port", str(port)]
            argv += ["--ctx-size", str(CONTEXT_TOKENS * slots), "--parallel", str(slots), "--threads", "1"]
            argv += ["--slot-save-path", f"{folder}/{port}", "--kv-unified", "--cache-ram", "0"]
            pids.append(started.enter_context(process([*argv, "--device", "none", "--log-disable"], port)))
        for port in ports:
            wait_until_loaded(port)
        yield Servers(folder, slots, ports, pids)


def wait_until_loaded(port: int) -> None:
    for _ in range(LOAD_TRIES):
        if httpx.get(f"http://{ADDRESS}:{port}/health", timeout=5).is_success:
            return
        sleep(0.1)
    raise SystemExit("a llama-server did not load its model within a minute")


@contextmanager
def gateway(used: Servers, layout: Layout) -> Iterator[tuple[int, int]]:
    """A gateway in front of the servers: its port and its process."""
    port = free_port()
    argv = [sys.executable, "-m", "benchmarks.gateway_llama", "--serve", str(port)]
    with process([*argv, json.dumps(asdict(used)), json.dumps(asdict(layout))], port) as pid:
        yield port, pid


def serve(port: str, used: str, layout: str) -> None:
    servers, wanted = json.loads(used), json.loads(layout)
    endpoints = tuple(
        Endpoint(
            *(number, role, servers["slots"], role, Target(ADDRESS, one, "none"), number),
            *(f"{servers['folder']}/{one}", True, 0),
        )
        for number, (role, one) in enumerate(zip(wanted["roles"], servers["ports"], strict=False), 1)
    )
    run(int(port), Wanted(1, MODEL, 0, CONTEXT_TOKENS, wanted["hands_over"], endpoints), FolderMover())


def post(port: int, path: str, body: dict[str, Any]) -> dict[str, Any]:
    headers = {"Authorization": "Bearer k", "X-E2LLM-Timing": "1"}
    answer = httpx.post(f"http://{ADDRESS}:{port}{path}", json=body, headers=headers, timeout=120)
    return dict(answer.raise_for_status().json())


def question(subject: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"About {subject}. {TEXT} What is good to know about {subject}?"}]
    return {"model": MODEL, "messages": messages, "max_tokens": 32, "temperature": 0}


def ask(port: int, subject: str, slot: int | None = None) -> dict[str, Any]:
    chosen = {} if slot is None else {"id_slot": slot}
    return post(port, "/v1/chat/completions", {**question(subject), **chosen})


def ask_in_two_steps(port: int, subject: str, slot: int) -> dict[str, Any]:
    """As a hand-over does: all of the prompt but its last token, and then the answer."""
    prompt = post(port, "/apply-template", question(subject))["prompt"]
    tokens = post(port, "/tokenize", {"content": prompt, "add_special": True, "parse_special": True})[
        "tokens"
    ]
    post(port, "/completion", {"prompt": tokens[:-1], "n_predict": 0, "id_slot": slot, "cache_prompt": True})
    return ask(port, subject, slot)


def text(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


def begin_alike(used: Servers) -> None:
    """Every slot holds the same other conversation, so that each prompt finds as much of itself in any of them."""
    for port in used.ports:
        for slot in range(used.slots):
            post(port, f"/slots/{slot}?action=erase", {})
            ask(port, "clouds", slot)


def directly(used: Servers, layout: Layout) -> list[str]:
    """The texts of the last server, asked for one after the other in each of its slots."""
    begin_alike(used)
    one = ask_in_two_steps if layout.hands_over else ask

    def in_slot(slot: int) -> list[str]:
        return [text(one(used.ports[-1], subject, slot)) for subject in SUBJECTS[slot :: used.slots]]

    with ThreadPoolExecutor(used.slots) as pool:
        found = list(pool.map(in_slot, range(used.slots)))
    return [found[number % used.slots][number // used.slots] for number in range(len(SUBJECTS))]


def compared(used: Servers, layout: Layout) -> str:
    first, again = directly(used, layout), directly(used, layout)
    begin_alike(used)
    with gateway(used, layout) as (port, pid), ThreadPoolExecutor(layout.concurrent) as pool:
        pids = [pid, *used.pids]
        before = [cpu_seconds([one]) for one in pids]
        answers = list(pool.map(partial(ask, port), SUBJECTS))
        spent = [cpu_seconds([one]) - start for one, start in zip(pids, before, strict=True)]
    repeated = sum(map(str.__eq__, first, again))
    equal = sum(map(str.__eq__, first, map(text, answers)))
    hits = sum(answer["e2llm"]["handover"] == "hit" for answer in answers)
    share = spent[0] / sum(spent)
    met = share < 0.05 and equal == len(SUBJECTS) and hits == len(SUBJECTS) * layout.hands_over
    verdict = ("met" if met else "missed") if layout.must_be_equal else "for comparison"
    of = f"of {len(SUBJECTS)}"
    return f"| {layout.name} | {repeated} {of} | {equal} {of} | {hits} | {share:.1%} | {verdict} |\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--llama-server", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--write", action="store_true", help="write the table into docs/results.md")
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        return serve(*given.serve)
    table = HEAD + "|---|---|---|---|---|---|\n"
    start: Callable[[int, int], Any] = partial(servers, given.llama_server, given.model)
    with start(4, 1) as used:
        table += "".join(compared(used, layout) for layout in LAYOUTS)
    with start(1, 2) as used:
        table += compared(used, BUSY_SLOTS)
    print(table)
    if given.write:
        write_part(RESULTS, "gateway-llama", table)
    return None


if __name__ == "__main__":
    main()

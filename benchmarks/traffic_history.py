"""The traffic pages over a long history: how much slower they get with ten times the requests, and a week of samples.

    python -m benchmarks.traffic_history [--requests 1000000] [--write]

Two SQLite databases in temporary folders hold a week of traffic samples, one a second, and as many requests as asked
for and a tenth of that. Each page is built as its view builds it. Times are CPU seconds of this process, the median of
five: read the ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.report import write_part

ROOT = Path(__file__).resolve().parents[1]
PART = "traffic-history"
WEEK = timedelta(days=7)
ROUNDS = 5
BATCH = 20_000
REPLICAS = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--write", action="store_true", help="put the table into docs/results.md")
    options = parser.parse_args()
    if options.measure:
        sys.stdout.write(json.dumps(measured(options.requests)))
        return
    few, many = in_own_process(options.requests // 10), in_own_process(options.requests)
    text = table(few, many, options.requests)
    print(text)
    if options.write:
        write_part(ROOT / "docs" / "results.md", PART, text)


def in_own_process(requests: int) -> dict[str, float]:
    """Page -> CPU milliseconds, over a database of its own."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"E2LLM_DATA": folder, "DATABASE_URL": ""}
        argv = [sys.executable, "-m", "benchmarks.traffic_history", "--measure", "--requests", str(requests)]
        done = subprocess.run(argv, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True)
        return dict(json.loads(done.stdout))


def table(few: dict[str, float], many: dict[str, float], requests: int) -> str:
    lines = [
        f"| page | {requests // 10:,} requests | {requests:,} requests | ratio |",
        "|---|---|---|---|",
        *(
            f"| {name} | {few[name]:.0f} ms | {many[name]:.0f} ms | {many[name] / few[name]:.1f} |"
            for name in many
        ),
    ]
    return "\n".join(lines)


def measured(requests: int) -> dict[str, float]:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "e2llm_web.settings")
    import django  # noqa: PLC0415  the settings read the folder that the parent has chosen

    django.setup()
    from django.core.management import call_command  # noqa: PLC0415

    call_command("migrate", verbosity=0)
    fill(requests)
    return {name: milliseconds(work) for name, work in pages()}


def milliseconds(work: Callable[[], object]) -> float:
    taken = []
    for _ in range(ROUNDS):
        began = time.process_time()
        work()
        taken.append(time.process_time() - began)
    return 1000 * statistics.median(taken)


def pages() -> Iterator[tuple[str, Callable[[], object]]]:
    from django.core.paginator import Paginator  # noqa: PLC0415

    from serving.charts import request_rows  # noqa: PLC0415
    from serving.charts.traffic import RANGES  # noqa: PLC0415
    from serving.models import Deployment, Replica  # noqa: PLC0415
    from serving.services import replica_pair, roll_ups, traffic  # noqa: PLC0415
    from upkeep.services import alerts  # noqa: PLC0415

    def requests_table(wanted: traffic.RequestFilter) -> list[object]:
        page = Paginator(traffic.matching(wanted), 50).get_page(1)
        return [request_rows.row(sample) for sample in page] + [page.paginator.count]

    left, right = Replica.objects.all()[:2]
    deployment = Deployment.objects.get()
    by_key = {range_.key: range_ for range_ in RANGES}
    yield "charts, 5 min", lambda: traffic.page(by_key["5m"])
    yield "charts, 1 hour", lambda: traffic.page(by_key["1h"])
    yield "charts, 24 hours", lambda: traffic.page(by_key["24h"])
    yield "charts, 7 days", lambda: traffic.page(by_key["7d"])
    yield "two replicas, 7 days", lambda: replica_pair.compared((left, right), by_key["7d"])
    yield "table of requests", lambda: requests_table(traffic.RequestFilter())
    yield "table, failed ones", lambda: requests_table(traffic.RequestFilter(outcome="failed"))
    yield "table, of a deployment", lambda: requests_table(traffic.RequestFilter(deployment=deployment.pk))
    yield "table, searched by word", lambda: requests_table(traffic.RequestFilter(words="no slot"))
    yield "last hour, for the deployment's page", lambda: traffic.recent_requests(deployment)
    yield "alerts, one look", alerts.watch
    yield "roll-up, nothing new", roll_ups.roll_up


def fill(requests: int) -> None:
    from django.utils import timezone  # noqa: PLC0415

    from inventory.models import LanguageModel  # noqa: PLC0415
    from serving.models import Deployment, Replica  # noqa: PLC0415
    from serving.services import roll_ups  # noqa: PLC0415

    model = LanguageModel.objects.create(
        name="tiny", architecture="llama", fingerprint="f" * 64, size_bytes=1, shape={}
    )
    planned = {"stages": [{"device": "box"}], "tpot_seconds": 0.05}
    deployment = Deployment.objects.create(
        model=model, name="tiny", plan={"replicas": [planned] * REPLICAS}, cluster={}, context_tokens=1024
    )
    replicas = [
        Replica.objects.create(deployment=deployment, index=index, role="mixed", slots=4, api_key="").pk
        for index in range(REPLICAS)
    ]
    now = timezone.now()
    add_requests(requests, deployment.pk, replicas, now)
    add_samples(replicas, now)
    roll_ups.roll_up()
    roll_ups.roll_up()


def add_requests(count: int, deployment: int, replicas: list[int], now: datetime) -> None:
    from serving.models import RequestSample  # noqa: PLC0415

    rng = Random(7)
    for start in range(0, count, BATCH):
        RequestSample.objects.bulk_create(
            one_request(number, count, deployment, rng.choice(replicas), now, rng)
            for number in range(start, min(count, start + BATCH))
        )


def one_request(number: int, count: int, deployment: int, replica: int, now: datetime, rng: Random) -> Any:
    from serving.models import RequestSample  # noqa: PLC0415

    queued, first = rng.expovariate(2), rng.expovariate(1)
    is_failed = rng.random() < 0.01
    return RequestSample(
        request_id=f"req-{number:024x}",
        deployment_id=deployment,
        decode_replica_id=replica,
        received_at=now - WEEK + WEEK * (number / count),
        outcome="failed" if is_failed else "ok",
        status=502 if is_failed else 200,
        error="the replica failed: no slot" if is_failed else "",
        prompt_tokens=200,
        output_tokens=64,
        prefilled_tokens=180,
        queued_seconds=queued,
        prefill_seconds=first / 2,
        first_token_seconds=queued + first,
        total_seconds=queued + first + 3,
    )


def add_samples(replicas: list[int], now: datetime) -> None:
    from serving.models import TrafficSample  # noqa: PLC0415

    loads = [
        {"replica": pk, "label": f"M{pk}", "role": "mixed", "waiting": 1, "running": 2, "slots": 4}
        for pk in replicas
    ]
    total = int(WEEK.total_seconds())
    for start in range(0, total, BATCH):
        TrafficSample.objects.bulk_create(
            TrafficSample(
                at=now.astimezone(UTC) - timedelta(seconds=total - second - 1),
                gateway="one",
                waiting=second % 5,
                running=second % 16,
                slots=16,
                output_tokens=20,
                replicas=loads,
            )
            for second in range(start, min(total, start + BATCH))
        )


if __name__ == "__main__":
    main()

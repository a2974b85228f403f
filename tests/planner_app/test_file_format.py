"""What users are told of cluster and plan files is what the planner reads."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest
from django.conf import settings
from django.test import Client
from django.urls import reverse

from planner import services
from planner.core.plan import Bottleneck, Plan, Predicted, Proof, Replica, Stage
from planner.core.problem import (
    MAX_BLOCKS,
    MAX_DEVICES,
    BlockKind,
    Device,
    LatencyTable,
    Link,
    ModelShape,
    Policy,
    Problem,
    Workload,
)
from tests.planner_app.test_commands import run

DOCUMENT = (Path(settings.BASE_DIR) / "docs" / "cluster-file.md").read_text()
PARTS = (ModelShape, BlockKind, Workload, Policy, Device, Link)
TABLE_FIELDS = ("micro_batch", "tokens", "gpu_block_seconds", "cpu_block_seconds", "head_seconds")
OF_PLANS = (Plan, Replica, Stage, Predicted, Bottleneck, Proof)


def test_the_example_of_the_documentation_is_planned(tmp_path: Path) -> None:
    (example,) = re.findall(r"```json\n(.*?)```", DOCUMENT, re.DOTALL)
    path = tmp_path / "two.json"
    path.write_text(example)
    status, told = run("plan", path, "--json")
    assert status == 0
    assert Plan.from_dict(json.loads(told)).replicas
    assert json.loads(example) == services.SMALL_EXAMPLE.cluster()


def test_every_field_of_both_formats_is_documented() -> None:
    cluster, _, plan = DOCUMENT.partition("## The plan file")
    assert len(LatencyTable.__dataclass_fields__) + 1 == len(TABLE_FIELDS)
    wanted = [field.name for part in PARTS for field in fields(part)]
    assert [name for name in (*wanted, *TABLE_FIELDS) if f"`{name}`" not in cluster] == []
    names = [field.name for part in OF_PLANS for field in fields(part)]
    assert [name for name in names if f"`{name}`" not in plan] == []
    assert f"| devices | 1 to {MAX_DEVICES} |" in cluster and f"1 to {MAX_BLOCKS}" in cluster


@pytest.mark.django_db
def test_the_page_that_takes_files_says_what_they_hold_and_gives_one(page: Client) -> None:
    text = page.get(reverse("planner:file")).content.decode()
    cluster = services.SMALL_EXAMPLE.cluster()
    told = set(re.findall(r"<code>(\w+)</code>", text))
    assert {*cluster, *cluster["workload"], *cluster["policy"], "kind", "decode"} <= told
    assert f"up to {MAX_DEVICES} devices" in text
    given = page.get(reverse("planner:example_file"))
    assert f'href="{reverse("planner:example_file")}"' in text
    assert Problem.from_dict(json.loads(given.content)).devices[0].name == "desk"

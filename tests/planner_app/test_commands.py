"""The commands `plan` and `simulate`: their documents and exit statuses."""

from __future__ import annotations

import json
import re
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

from planner.core.plan import Plan


def run(*arguments: object) -> tuple[int, str]:
    """Exit status and standard output of a command."""
    out = StringIO()
    try:
        call_command(*(str(argument) for argument in arguments), stdout=out, stderr=StringIO())
    except SystemExit as end:
        return int(str(end.code)), out.getvalue()
    return 0, out.getvalue()


@pytest.fixture
def cluster_path(small_cluster: dict[str, Any], tmp_path: Path) -> Path:
    return saved(tmp_path / "lab.cluster.json", small_cluster)


def saved(path: Path, document: Any) -> Path:
    path.write_text(json.dumps(document))
    return path


def test_plan_prints_one_document_and_the_same_again(cluster_path: Path) -> None:
    first, second = (
        run("plan", cluster_path, "--json", "--seed", 4),
        run("plan", cluster_path, "--json", "--seed", 4),
    )
    assert first == second
    assert first[0] == 0
    assert Plan.from_dict(json.loads(first[1])).seed == 4


def test_plan_without_json_names_devices_and_what_binds(cluster_path: Path) -> None:
    status, text = run("plan", cluster_path)
    assert status == 0
    assert re.search(r"^Mean wait +[\d.]+ s ", text, re.MULTILINE)
    assert "Dev.1" in text


def test_wrong_input_ends_with_two_and_lists_the_problems(
    small_cluster: dict[str, Any], tmp_path: Path
) -> None:
    small_cluster["devices"][0]["gpu_usable_bytes"] = -5
    status, text = run("plan", saved(tmp_path / "wrong.json", small_cluster), "--json")
    assert status == 2
    assert json.loads(text)["problems"] == ["devices[0].gpu_usable_bytes: -5 is negative"]


def test_a_missing_file_ends_with_two(tmp_path: Path) -> None:
    status, text = run("plan", tmp_path / "nothing.json", "--json")
    assert status == 2
    assert "No such file" in json.loads(text)["problems"][0]


def test_no_plan_ends_with_three_and_says_by_how_much(small_cluster: dict[str, Any], tmp_path: Path) -> None:
    small_cluster["policy"]["min_tokens_per_second"] = 1e6
    status, text = run("plan", saved(tmp_path / "fast.json", small_cluster), "--json")
    document = json.loads(text)
    assert status == 3
    assert document["limit"] == "floor"
    assert document["shortfall"] > 0


def test_simulate_serves_the_plan_it_is_given(cluster_path: Path, tmp_path: Path) -> None:
    plan = json.loads(run("plan", cluster_path, "--json")[1])
    plan_path = saved(tmp_path / "lab.plan.json", plan)
    status, text = run("simulate", cluster_path, plan_path, "--json", "--requests", 7, "--router", "slot-jsq")
    told = json.loads(text)
    assert status == 0
    assert (told["requests"], told["router"]) == (7, "slot-jsq")
    assert 0 <= told["mean_wait_seconds"] <= told["max_wait_seconds"]


def test_simulate_refuses_a_plan_for_other_devices(
    cluster_path: Path, small_cluster: dict[str, Any], tmp_path: Path
) -> None:
    plan_path = saved(tmp_path / "lab.plan.json", json.loads(run("plan", cluster_path, "--json")[1]))
    for device in small_cluster["devices"]:
        device["name"] = f"other {device['name']}"
    status, text = run("simulate", saved(tmp_path / "other.json", small_cluster), plan_path, "--json")
    assert status == 2
    assert "is not a device of the cluster file" in text

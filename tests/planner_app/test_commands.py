"""The commands `plan` and `simulate`: their documents and exit statuses."""

from __future__ import annotations

import json
import re
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import ManagementUtility, call_command

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


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_a_seed_that_no_file_could_hold_ends_with_two(cluster_path: Path, tmp_path: Path, seed: int) -> None:
    plan_path = saved(tmp_path / "lab.plan.json", json.loads(run("plan", cluster_path, "--json")[1]))
    for arguments in (("plan", cluster_path), ("simulate", cluster_path, plan_path)):
        status, text = run(*arguments, "--json", "--seed", seed)
        assert status == 2
        assert json.loads(text)["problems"] == [f"seed: {seed} is not between 0 and {2**63 - 1}"]


def test_simulate_refuses_more_slots_than_the_policy_allows(cluster_path: Path, tmp_path: Path) -> None:
    plan = json.loads(run("plan", cluster_path, "--json")[1])
    most = json.loads(cluster_path.read_text())["policy"]["max_slots"]
    plan["replicas"][0]["slots"] = 10**9
    status, text = run("simulate", cluster_path, saved(tmp_path / "many.plan.json", plan), "--json")
    assert status == 2
    told = f"replicas[0].slots: 1000000000 is more than the policy's max_slots, {most}"
    assert json.loads(text)["problems"] == [told]


def test_simulate_refuses_a_plan_that_does_not_fit_the_memory(cluster_path: Path, tmp_path: Path) -> None:
    plan_path = saved(tmp_path / "lab.plan.json", json.loads(run("plan", cluster_path, "--json")[1]))
    document = json.loads(cluster_path.read_text())
    used = json.loads(plan_path.read_text())["replicas"][0]["stages"][0]
    device = next(entry for entry in document["devices"] if entry["name"] == used["device"])
    device["gpu_usable_bytes"] = used["gpu_bytes"] // 2
    status, text = run("simulate", saved(cluster_path, document), plan_path, "--json")
    assert status == 2
    needs = f"replicas[0].stages[0].gpu_blocks: needs {used['gpu_bytes']:,.0f} bytes on {used['device']}, which has"
    assert json.loads(text)["problems"][0].startswith(needs)


def test_simulate_refuses_a_plan_that_leaves_blocks_out(cluster_path: Path, tmp_path: Path) -> None:
    plan = json.loads(run("plan", cluster_path, "--json")[1])
    plan["replicas"][0]["stages"][0]["gpu_blocks"] -= 1
    status, text = run("simulate", cluster_path, saved(tmp_path / "short.plan.json", plan), "--json")
    blocks = json.loads(cluster_path.read_text())["model"]["blocks"]
    assert status == 2
    assert json.loads(text)["problems"] == [f"replicas[0]: holds {blocks - 1} blocks, the model has {blocks}"]


@pytest.mark.parametrize(
    ("digits", "told"), [(400, "model.block_bytes: 1000"), (5000, "a number has too many digits")]
)
def test_a_number_of_endless_digits_is_a_problem_like_any_other(
    cluster_path: Path, digits: int, told: str
) -> None:
    document = json.loads(cluster_path.read_text())
    document["model"]["block_bytes"] = "LONG"
    cluster_path.write_text(json.dumps(document).replace('"LONG"', "1" + "0" * digits))
    status, text = run("plan", cluster_path, "--json")
    assert status == 2
    (problem,) = json.loads(text)["problems"]
    assert told in problem


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"\xff\xfe{}", "is not UTF-8 text (byte 1)"),
        (b'{"a": 1,\n}', "is not JSON (line 2, column 1)"),
        (b"", "is not JSON (line 1, column 1)"),
        (b"[" * 100_000, "is not JSON: it is nested too deeply"),
    ],
)
def test_a_file_that_is_no_json_is_said_so_in_our_words(content: bytes, told: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.json"
    path.write_bytes(content)
    status, text = run("plan", path, "--json")
    assert (status, json.loads(text)["problems"]) == (2, [f"{path}: {told}"])


def test_simulate_refuses_numbers_that_contradict_the_cluster(cluster_path: Path, tmp_path: Path) -> None:
    plan = json.loads(run("plan", cluster_path, "--json")[1])
    plan["replicas"][0] |= {"bottleneck_seconds": 1e-9, "tpot_seconds": 1e-9}
    status, text = run("simulate", cluster_path, saved(tmp_path / "odd.plan.json", plan), "--json")
    problems = json.loads(text)["problems"]
    assert status == 2
    assert problems[0].startswith("replicas[0].bottleneck_seconds: 1e-09, but the cluster file makes it ")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["plan", "x.json", "--method", "magic"], "argument --method: invalid choice: 'magic'"),
        (["plan", "x.json", "--seed", "many"], "argument --seed: invalid int value: 'many'"),
        (["plan", "x.json", "--surprise"], "unrecognized arguments: --surprise"),
        (["plan"], "the following arguments are required: CLUSTER.json"),
        (["simulate", "x.json", "y.json", "--router", "none"], "argument --router: invalid choice: 'none'"),
    ],
)
def test_a_wrong_option_is_told_in_the_document_too(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        ManagementUtility(["manage.py", *arguments, "--json"]).execute()
    document = json.loads(capsys.readouterr().out)
    assert end.value.code == 2
    assert document["error"] == "bad input" and document["problems"][0].startswith(told)


def test_simulate_tells_the_slowest_answer_from_the_guaranteed_one(
    cluster_path: Path, tmp_path: Path
) -> None:
    plan = json.loads(run("plan", cluster_path, "--json")[1])
    plan_path = saved(tmp_path / "lab.plan.json", plan)
    told = json.loads(run("simulate", cluster_path, plan_path, "--json")[1])
    guaranteed = min(1 / one["tpot_seconds"] for one in plan["replicas"] if one["role"] != "prefill")
    assert told["guaranteed_tokens_per_second"] == pytest.approx(guaranteed)
    text = run("simulate", cluster_path, plan_path)[1]
    assert re.search(r"^Slowest answer .*in this burst", text, re.MULTILINE)
    assert re.search(r"^Guaranteed answer .*all slots busy", text, re.MULTILINE)

"""Bad cluster files: one error that lists every problem with its path, and nothing else."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import pytest

from planner.core.document import read_json
from planner.core.errors import BadDocument, NotJson
from planner.core.problem import Problem
from tests.planner.cluster import GPT_OSS, QWEN, paper_document

OPTIONAL = {"note", "main_pool"}


def small_document() -> dict[str, Any]:
    document = paper_document(GPT_OSS)
    document["devices"] = document["devices"][:2]
    document["links"]["pairs"] = [
        {"a": "Dev.1", "b": "Dev.2", "bytes_per_second": 1e8, "latency_seconds": 0.001}
    ]
    return document


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every field and entry of a document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = [] if not at else [at]
    for key, child in inner:
        found += paths(child, (*at, key))
    return found


def shown(path: tuple[Any, ...]) -> str:
    text = ""
    for key in path:
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else key
    return text


def parent(document: Any, path: tuple[Any, ...]) -> Any:
    for key in path[:-1]:
        document = document[key]
    return document


EVERYWHERE = [path for path in paths(small_document()) if not OPTIONAL & {path[0], path[-1]}]
FIELDS = [path for path in EVERYWHERE if isinstance(path[-1], str) and path[-2:] != ("links", "pairs")]
LEAVES = [
    path
    for path in EVERYWHERE
    if isinstance(parent(small_document(), path)[path[-1]], int | float) and not isinstance(path[-1], bool)
]
NUMBERS = [path for path in LEAVES if not isinstance(parent(small_document(), path)[path[-1]], bool)]


def problems_of(document: Any) -> list[str]:
    with pytest.raises(BadDocument) as caught:
        Problem.from_dict(document)
    return caught.value.problems


@pytest.mark.parametrize("path", FIELDS, ids=shown)
def test_a_missing_field_is_named(path: tuple[Any, ...]) -> None:
    document = small_document()
    del parent(document, path)[path[-1]]
    assert any(one.startswith(f"{shown(path)}: is missing") for one in problems_of(document))


@pytest.mark.parametrize("wrong", [[], {}, "", True, None], ids=repr)
@pytest.mark.parametrize("path", NUMBERS, ids=shown)
def test_a_number_of_the_wrong_type_is_named(path: tuple[Any, ...], wrong: Any) -> None:
    document = small_document()
    parent(document, path)[path[-1]] = wrong
    assert any(one.startswith(f"{shown(path)}: ") for one in problems_of(document))


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1, -0.1, 1e300], ids=repr)
@pytest.mark.parametrize("path", NUMBERS, ids=shown)
def test_nan_infinite_negative_and_absurd_numbers_are_named(path: tuple[Any, ...], wrong: float) -> None:
    document = small_document()
    parent(document, path)[path[-1]] = wrong
    assert any(one.startswith(f"{shown(path)}: ") for one in problems_of(document))


@pytest.mark.parametrize("path", FIELDS, ids=shown)
def test_null_is_no_value_but_for_times_of_blocks_in_ram(path: tuple[Any, ...]) -> None:
    document = small_document()
    parent(document, path)[path[-1]] = None
    if path[-1] == "cpu_block_seconds":
        assert Problem.from_dict(document).devices[path[1]].name
        return
    assert any(one.startswith(f"{shown(path)}: nothing is not ") for one in problems_of(document))


@pytest.mark.parametrize(
    "path",
    [
        ("workload", "input_cv"),
        ("workload", "output_cv"),
        ("workload", "arrivals"),
        ("policy", "handover"),
        ("links", "pairs"),
        ("devices", 0, "can_be_master"),
        ("devices", 0, "max_blocks"),
        ("devices", 0, "main_pool"),
        ("model", "block_kinds"),
    ],
    ids=shown,
)
@pytest.mark.parametrize("wrong", [None, [[]], {"a": 1}, math.nan, -1, "surprise"], ids=repr)
def test_a_field_that_may_be_missing_may_not_be_wrong(path: tuple[Any, ...], wrong: Any) -> None:
    document = small_document()
    parent(document, path)[path[-1]] = wrong
    assert any(one.startswith(shown(path)) for one in problems_of(document))


def test_a_fault_in_one_field_does_not_blame_another() -> None:
    document = small_document()
    document["workload"]["context_tokens"] = None
    document["model"]["block_bytes"] = -5
    document["policy"]["max_slots"] = 0
    assert problems_of(document) == [
        "model.block_bytes: -5 is not positive",
        "workload.context_tokens: nothing is not a whole number",
        "policy.max_slots: 0 is less than 1",
    ]


@pytest.mark.parametrize("path", FIELDS, ids=shown)
def test_an_object_in_the_place_of_anything_is_no_traceback(path: tuple[Any, ...]) -> None:
    document = small_document()
    parent(document, path)[path[-1]] = {"surprise": 1}
    assert problems_of(document)


@pytest.mark.parametrize("document", [None, [], 3, "text", {}], ids=repr)
def test_what_is_no_cluster_file_is_said_so(document: Any) -> None:
    assert problems_of(document)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (None, "nothing is not a number"),
        (True, "true is not a number"),
        ([None], "a list is not a number"),
        ({"a": True}, "an object is not a number"),
        (math.nan, "NaN is not a number"),
        (-math.inf, "-infinity is not a number between 0 and 1e+30"),
    ],
)
def test_a_wrong_value_is_told_in_the_words_of_the_file(wrong: Any, told: str) -> None:
    document = small_document()
    document["devices"][0]["gpu_usable_bytes"] = wrong
    assert problems_of(document) == [f"devices[0].gpu_usable_bytes: {told}"]


@pytest.mark.parametrize("wrong", [None, 5, ["full", None]], ids=repr)
def test_bad_block_kinds_do_not_blame_the_kinds(wrong: Any) -> None:
    document = small_document()
    document["model"]["block_kinds"] = wrong
    assert all(one.startswith("model.block_kinds") for one in problems_of(document))


def test_every_problem_is_listed_at_once() -> None:
    document = small_document()
    document["devices"][1]["decode"]["gpu_block_seconds"][3] = -0.1
    document["devices"][1]["surprise"] = 1
    document["model"]["blocks"] = 0
    document["links"]["default"]["bytes_per_second"] = 0
    document["policy"]["runtime"] = "quantum"
    assert problems_of(document) == [
        "model.blocks: 0 is less than 1",
        "policy.runtime: 'quantum' is not one of serial, overlapped",
        "devices[1].decode.gpu_block_seconds[3]: -0.1 is not positive",
        "devices[1].surprise: is not a field of this format",
        "links.default.bytes_per_second: 0 is not positive",
    ]


def test_a_grid_that_does_not_rise_and_a_column_of_another_length_are_named() -> None:
    document = small_document()
    document["devices"][0]["prefill"]["tokens"] = [128, 576, 576, 2291, 4096]
    document["devices"][0]["decode"]["head_seconds"].pop()
    assert problems_of(document) == [
        "devices[0].decode.head_seconds: has 5 entries for 6 micro_batch points",
        "devices[0].prefill.tokens: does not rise",
    ]


def test_zero_devices_two_thousand_devices_and_doubles_are_refused() -> None:
    document = small_document()
    none, many, double = (copy.deepcopy(document) for _ in range(3))
    none["devices"], none["links"]["pairs"] = [], []
    many["devices"] = [{**document["devices"][0], "name": f"d{k}"} for k in range(2000)]
    double["devices"][1]["name"] = "Dev.1"
    assert problems_of(none) == ["devices: has 0 entries, needs at least 1"]
    assert problems_of(many) == ["devices: has 2,000 entries; this planner takes at most 256"]
    assert "devices[1].name: 'Dev.1' is used twice" in problems_of(double)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("gpu_usable_bytes",), 1e9),
        (("max_blocks",), 3),
        (("decode", "head_seconds", 1), 1.0),
        (("prefill", "cpu_block_seconds"), None),
    ],
)
def test_devices_of_one_kind_that_differ_are_named_with_the_field(path: tuple[Any, ...], value: Any) -> None:
    document = small_document()
    twin = copy.deepcopy(document["devices"][0]) | {"name": "twin"}
    document["devices"].append(twin)
    assert Problem.from_dict(document).devices[2].kind == "5070"
    parent(twin, path)[path[-1]] = value
    field = ".".join(str(key) for key in path if isinstance(key, str))
    assert problems_of(document) == [
        f"devices[2].kind: twin and Dev.1 are both '5070' but differ in {field}; "
        "devices of one kind are interchangeable"
    ]


@pytest.mark.parametrize("wrong", ["\x00", "a\x1b[31mb", "a\nb", "a\u2028b", "\ud800"], ids=ascii)
@pytest.mark.parametrize("path", [("model",), ("devices", 0)], ids=shown)
def test_control_characters_in_a_name_are_refused_and_not_repeated(path: tuple[Any, ...], wrong: str) -> None:
    document = small_document()
    document["links"].pop("pairs")
    parent(document, (*path, "name"))["name"] = wrong
    parent(document, (*path, "name"))[wrong] = 1
    told = problems_of(document)
    assert f"{shown(path)}.name: {wrong!r} has control characters" in told
    assert f"{shown(path)}.{wrong!r}: is not a field of this format" in told


def test_a_name_has_a_longest_length() -> None:
    document = small_document()
    document["links"].pop("pairs")
    document["devices"][0]["name"] = "n" * 100
    document["model"]["name"] = "m" * 200
    assert Problem.from_dict(document)
    document["devices"][0]["name"] += "n"
    document["model"]["name"] += "m"
    assert [one.partition("...")[2] for one in problems_of(document)] == [
        " has 201 characters, more than 200",
        " has 101 characters, more than 100",
    ]


def test_links_must_lead_somewhere() -> None:
    document = small_document()
    document["links"]["pairs"] += [
        {"a": "Dev.1", "b": "Dev.9", "bytes_per_second": 1e8, "latency_seconds": 0.001},
        {"a": "Dev.2", "b": "Dev.2", "bytes_per_second": 1e8, "latency_seconds": 0.001},
        {"a": "Dev.2", "b": "Dev.1", "bytes_per_second": 1e8, "latency_seconds": 0.001},
    ]
    assert problems_of(document) == [
        "links.pairs[1].b: 'Dev.9' is not a device",
        "links.pairs[2].b: 'Dev.2' is linked to itself",
        "links.pairs[3]: Dev.2 and Dev.1 are already linked",
    ]


@pytest.mark.parametrize(
    ("devices", "told"), [(None, "nothing is not a list"), ({}, "an object is not a list")]
)
def test_a_fault_of_the_devices_is_told_once(devices: Any, told: str) -> None:
    document = small_document() | {"devices": devices}
    del document["links"]["pairs"]
    assert problems_of(document) == [f"devices: {told}"]
    del document["devices"]
    assert problems_of(document) == ["devices: is missing"]


def test_a_key_that_stands_twice_is_refused_by_its_name() -> None:
    text = json.dumps(small_document())
    assert read_json(text.encode()) == small_document()
    with pytest.raises(NotJson, match="has 'policy' twice in one object"):
        read_json(f'{text[:-1]}, "policy": {{}}}}'.encode())
    with pytest.raises(NotJson, match="has 'seed' twice"):
        read_json(text.replace('"seed"', '"seed": 3, "seed"').encode())


def test_a_context_too_short_for_the_workload_is_refused() -> None:
    document = small_document()
    document["workload"]["context_tokens"] = 600
    assert problems_of(document) == ["workload.context_tokens: 600 does not hold 1164 tokens"]


@pytest.mark.parametrize("name", [GPT_OSS, QWEN])
def test_writing_and_reading_again_changes_nothing(name: str) -> None:
    problem = Problem.from_dict(paper_document(name))
    text = json.dumps(problem.to_dict(), allow_nan=False)
    again = Problem.from_dict(json.loads(text))
    assert again == problem
    assert again.input_sha256 == problem.input_sha256


def test_block_kinds_must_cover_the_model() -> None:
    document = small_document()
    sizes = {"block_bytes": 5e8, "block_resident_bytes": 1e7, "kv_slot_block_bytes": 1e7}
    document["model"]["block_kinds"] = ["full", "sliding"] * 12
    document["model"]["kinds"] = {"full": sizes, "sliding": {**sizes, "kv_slot_block_bytes": 1e6}}
    problem = Problem.from_dict(document)
    assert [block.kv_slot_block_bytes for block in problem.model.blocks_in_order()[:2]] == [1e7, 1e6]
    assert Problem.from_dict(json.loads(json.dumps(problem.to_dict()))) == problem
    wrong = copy.deepcopy(document)
    wrong["model"]["block_kinds"][3] = 5
    assert "model.block_kinds[3]: 5 is not a text" in problems_of(wrong)
    document["model"]["block_kinds"].pop()
    del document["model"]["kinds"]["sliding"]
    assert problems_of(document) == [
        "model.block_kinds: has 23 entries for 24 blocks",
        "model.kinds.sliding: is missing",
    ]

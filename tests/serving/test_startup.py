"""What a roll-out decides from numbers and log lines alone."""

from __future__ import annotations

from typing import Any

import pytest

from serving.core.backoff import is_due
from serving.core.beside import fits_beside
from serving.core.startup import explain, explain_end, lacks_cause, load_deadline_seconds


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("gguf_init_from_file_impl: failed to open GGUF file '/m.gguf'", "cannot be opened"),
        ("llama_model_load: tensor data is not within the file bounds, model is corrupted", "is cut short"),
        ("gguf_init_from_reader: invalid magic characters: 'PK'", "is not a GGUF file"),
        ("error: invalid argument: --fitt", "does not know an option"),
        ("srv start: couldn't bind HTTP server socket, hostname: 10.0.0.1", "used by another process"),
        ("Failed to create server socket", "used by another process"),
        ("llama_kv_cache: failed to allocate buffer for kv cache", "memory for the KV cache"),
        (
            "ggml_backend_cuda_buffer_type_alloc_buffer: cudaMalloc failed: out of memory",
            "memory for its blocks",
        ),
        ("error: unknown device: CUDA9", "does not have the device"),
        ("RPC handshake failed", "another version of llama.cpp"),
        ("Failed to connect to 10.0.0.12:50052", "cannot reach an RPC worker"),
    ],
)
def test_known_failure_is_said_with_its_remedy(line: str, cause: str) -> None:
    said = explain(f"0.01 I loading\n0.02 E {line}\n")
    assert cause in said
    assert len(said.split(". ")) > 1


def test_unknown_failure_shows_the_last_words() -> None:
    assert "b / c / d. It ended without a complaint in its log: ended by someone" in explain("a\nb\nc\nd\n")
    assert explain("a\nb\nerror: no\n").endswith("a / b / error: no")
    assert "without a word" in explain("")


def test_end_of_one_that_ran_is_a_sentence_with_no_more_than_the_last_complaint() -> None:
    assert explain_end("a\nb\nerror: no\nc\n") == "it ended, and its log complains: error: no"
    assert "a\n" not in explain_end("a\nb\n") and "ended by someone" in explain_end("a\nb\n")
    assert "memory for its blocks" in explain_end("a\nE cudaMalloc failed: out of memory\n")
    assert len(explain_end("error " + "x" * 500)) < 250


def test_log_that_was_lost_lacks_a_cause() -> None:
    assert lacks_cause("")
    assert lacks_cause("0.00.002.438 I cmn  common_param: verbosity = 3\n")
    assert not lacks_cause("0.02 E srv start: couldn't bind HTTP server socket\n")
    assert not lacks_cause("error: no\n")


def test_deadline_of_a_load_grows_with_the_bytes_and_the_slowness_of_the_link() -> None:
    quick = load_deadline_seconds(10**9, 10**9, 115e6)
    slow = load_deadline_seconds(10**9, 10**9, 0.6e6)
    assert slow > 3 * 10**9 / 0.6e6
    assert quick < 200


def test_restarts_wait_longer_each_time_and_end() -> None:
    assert is_due(0, 0.0)
    assert not is_due(1, 5.0)
    assert is_due(1, 10.0)
    assert not is_due(2, 30.0)
    assert not is_due(4, 1e9)


def plan(device: str, used: int) -> dict[str, Any]:
    return {"replicas": [{"stages": [{"device": device, "gpu_bytes": used, "gpu_limit_bytes": 10}]}]}


def test_plans_fit_beside_each_other_only_where_both_fit_on_every_device() -> None:
    assert fits_beside(plan("a", 5), [plan("a", 5)])
    assert not fits_beside(plan("a", 6), [plan("a", 5)])
    assert fits_beside(plan("a", 9), [plan("b", 9)])

"""Predicted memory beside what llama-server says it took."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import memory, split_memory
from inventory.core.model_fit import Setting, fit_of, memory_of, slot_overhead_bytes
from inventory.core.model_shape import ModelShape

MICRO_BATCH_TOKENS = 512  # of what is deployed


@pytest.fixture(scope="module")
def model_paths(small_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return memory.models(small_model, tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize("name", [*memory.MADE, "SmolLM2-135M-Instruct.Q4_1"])
def test_predicted_memory_is_what_the_load_log_says(
    name: str, model_paths: dict[str, Path], llama_server: Path, tmp_path: Path
) -> None:
    shape = memory.shape_at(model_paths[name])
    for setting in memory.SETTINGS:
        predicted = memory_of(shape, setting)
        found = memory.allocated(model_paths[name], setting, llama_server, tmp_path / "log")
        assert predicted.weight_bytes == pytest.approx(found.weight_bytes, rel=0.002), setting
        assert predicted.kv_bytes == pytest.approx(found.kv_bytes, rel=0.002), setting
        assert predicted.total_bytes == pytest.approx(found.total_bytes, rel=0.03), setting
        if setting.micro_batch_tokens == MICRO_BATCH_TOKENS:
            reserved = reserve(shape, setting)
            assert found.compute_bytes <= reserved * 1.01 <= found.compute_bytes * 1.2, setting


def reserve(shape: ModelShape, setting: Setting) -> int:
    """What plans keep free for the compute buffer, without and with slots."""
    context, full = setting.context_tokens, setting.full_cache
    return shape.compute_bytes() + setting.slots * slot_overhead_bytes(shape, context, full_cache=full)


@pytest.mark.parametrize("name", [*memory.MADE, "SmolLM2-135M-Instruct.Q4_1"])
def test_each_device_of_a_split_replica_takes_what_is_predicted(
    name: str, model_paths: dict[str, Path], llama_server: Path, ggml_rpc_server: Path, tmp_path: Path
) -> None:
    for program in (llama_server, ggml_rpc_server):
        (tmp_path / program.name).symlink_to(program)
    for stage in split_memory.stages(model_paths[name], split_memory.SETTINGS[0], tmp_path, tmp_path / "log"):
        assert stage.predicted.weight_bytes == pytest.approx(stage.found.weight_bytes, rel=0.002), stage.role
        assert stage.predicted.kv_bytes == pytest.approx(stage.found.kv_bytes, rel=0.002), stage.role
        assert stage.predicted.total_bytes == pytest.approx(stage.found.total_bytes, rel=0.03), stage.role


def shape_with(blocks: int, **changes: int) -> ModelShape:
    block = {
        "kind": "full",
        "tensor_bytes": {},
        "size_bytes": 100_000_000,
        "resident_bytes": 0,
        "kv_bytes_per_token": 4096,
        "window_tokens": None,
        "state_bytes": 0,
    } | changes
    whole = {
        "architecture": "llama",
        "name": "x",
        "quantisation": "F16",
        "blocks": [block] * blocks,
        "embedding_length": 1024,
        "output_bytes": 0,
        "embedding_bytes": 0,
        "vocabulary": 1000,
        "context_train": 8192,
        "has_chat_template": True,
        "shards": 1,
        "file_bytes": 1,
        "weight_bytes": 1,
        "parameters": 1,
        "experts": 0,
        "experts_used": 0,
        "is_tied": False,
        "is_mla": False,
        "feed_forward_length": 1024,
        "notes": [],
    }
    return ModelShape.from_dict(whole)


def test_dense_blocks_move_whole_and_experts_in_part() -> None:
    gb = 10**9
    dense = fit_of(shape_with(20), gpu_bytes=gb, ram_bytes=10 * gb, context_tokens=8192)
    assert (dense.main_blocks, dense.second_blocks, dense.is_whole) == (7, 13, True)
    experts = fit_of(
        shape_with(20, resident_bytes=10_000_000), gpu_bytes=gb, ram_bytes=10 * gb, context_tokens=2048
    )
    assert experts.is_whole and 0 < experts.main_blocks < 20
    alone = fit_of(shape_with(20), gpu_bytes=gb, ram_bytes=0, context_tokens=8192)
    assert (alone.main_blocks, alone.second_blocks, alone.is_whole) == (7, 0, False)
    none = fit_of(shape_with(20), gpu_bytes=0, ram_bytes=0, context_tokens=8192)
    assert none.main_blocks == 0

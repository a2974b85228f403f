"""Latencies of a model that was never timed, from those of one that was."""

from __future__ import annotations

from typing import Any

import pytest

from inventory.core.model_shape import BlockShape, ModelShape
from inventory.core.other_model import decode_factor, estimated_tables, prefill_factor

TABLES: dict[str, Any] = {
    "decode": {
        "micro_batch": [1, 4],
        "gpu_block_seconds": [0.001, 0.002],
        "cpu_block_seconds": None,
        "head_seconds": [0.01, 0.02],
    },
    "prefill": {
        "tokens": [512],
        "gpu_block_seconds": [0.1],
        "cpu_block_seconds": [0.4],
        "head_seconds": [0.01],
    },
}


def model(block_bytes: int, bits: float, *, resident: int = 0, experts: int = 0, used: int = 0) -> ModelShape:
    block = BlockShape("full", {}, block_bytes, resident, 1024, None, 0)
    return ModelShape(
        architecture="x",
        name="x",
        quantisation="",
        blocks=(block,) * 4,
        embedding_length=64,
        output_bytes=block_bytes,
        embedding_bytes=0,
        vocabulary=100,
        context_train=4096,
        has_chat_template=True,
        shards=1,
        file_bytes=4 * block_bytes,
        weight_bytes=4 * block_bytes,
        parameters=round(4 * block_bytes * 8 / bits),
        experts=experts,
        experts_used=used,
        is_tied=False,
        is_mla=False,
        feed_forward_length=64,
    )


def test_a_model_of_the_same_shape_keeps_its_latencies() -> None:
    assert estimated_tables(TABLES, model(1000, 4), model(1000, 4)) == TABLES


def test_twice_the_bits_double_a_decode_step_but_not_a_prompt() -> None:
    found = estimated_tables(TABLES, model(1_000_000, 4), model(2_000_000, 8))
    assert found["decode"]["gpu_block_seconds"] == [0.002, 0.004]
    assert found["decode"]["cpu_block_seconds"] is None
    assert found["prefill"]["cpu_block_seconds"] == [0.4]
    assert found["prefill"]["head_seconds"] == [0.02]


def test_more_tokens_reach_more_experts_until_all_are_read() -> None:
    dense = model(1_000_000, 4)
    sparse = model(1_000_000, 4, resident=100_000, experts=10, used=1)
    factors = [decode_factor(dense, sparse, tokens) for tokens in (1, 2, 100)]
    assert factors == pytest.approx([0.19, 0.271, 1.0], rel=1e-3)
    assert prefill_factor(dense, sparse, 4096) == pytest.approx(1.0)

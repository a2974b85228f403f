"""Tiny GGUF files of many architectures, written with the gguf library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np

EMBEDDING, HEADS, KV_HEADS, HEAD_LENGTH, FEED_FORWARD, VOCABULARY = 64, 4, 2, 16, 128, 96


@dataclass
class Tiny:
    """What a test writes: keys of the architecture, and tensors by block."""

    architecture: str
    blocks: int = 4
    keys: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[int, Mapping[str, tuple[int, ...]]] = field(default_factory=dict)
    is_tied: bool = False
    chat_template: str = ""
    seed: int = 0

    def write(self, path: Path) -> Path:
        writer = gguf.GGUFWriter(path, self.architecture)
        writer.add_name(f"tiny {self.architecture}")
        for key, value in (self.usual_keys() | dict(self.keys)).items():
            add_value(writer, f"{self.architecture}.{key}", value)
        writer.add_token_list([f"t{index}" for index in range(VOCABULARY)])
        if self.chat_template:
            writer.add_chat_template(self.chat_template)
        self.add_tensors(writer)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def usual_keys(self) -> dict[str, Any]:
        return {
            "block_count": self.blocks,
            "context_length": 4096,
            "embedding_length": EMBEDDING,
            "feed_forward_length": FEED_FORWARD,
            "attention.head_count": HEADS,
            "attention.head_count_kv": KV_HEADS,
        }

    def add_tensors(self, writer: gguf.GGUFWriter) -> None:
        rng = np.random.default_rng(self.seed)
        shapes = {"token_embd.weight": (VOCABULARY, EMBEDDING), "output_norm.weight": (EMBEDDING,)}
        if not self.is_tied:
            shapes["output.weight"] = (VOCABULARY, EMBEDDING)
        for block in range(self.blocks):
            for name, shape in self.tensors.get(block, dense()).items():
                shapes[f"blk.{block}.{name}"] = shape
        for name, shape in shapes.items():
            writer.add_tensor(name, rng.normal(size=shape).astype(np.float32))


def add_value(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_uint32(key, value)


def attention() -> dict[str, tuple[int, ...]]:
    return {
        "attn_norm.weight": (EMBEDDING,),
        "attn_q.weight": (HEADS * HEAD_LENGTH, EMBEDDING),
        "attn_k.weight": (KV_HEADS * HEAD_LENGTH, EMBEDDING),
        "attn_v.weight": (KV_HEADS * HEAD_LENGTH, EMBEDDING),
        "attn_output.weight": (EMBEDDING, HEADS * HEAD_LENGTH),
    }


def feed_forward() -> dict[str, tuple[int, ...]]:
    return {
        "ffn_norm.weight": (EMBEDDING,),
        "ffn_gate.weight": (FEED_FORWARD, EMBEDDING),
        "ffn_up.weight": (FEED_FORWARD, EMBEDDING),
        "ffn_down.weight": (EMBEDDING, FEED_FORWARD),
    }


def experts(count: int = 4) -> dict[str, tuple[int, ...]]:
    return {
        "ffn_norm.weight": (EMBEDDING,),
        "ffn_gate_inp.weight": (count, EMBEDDING),
        "ffn_gate_exps.weight": (count, FEED_FORWARD, EMBEDDING),
        "ffn_up_exps.weight": (count, FEED_FORWARD, EMBEDDING),
        "ffn_down_exps.weight": (count, EMBEDDING, FEED_FORWARD),
    }


def dense() -> dict[str, tuple[int, ...]]:
    return attention() | feed_forward()


def recurrent() -> dict[str, tuple[int, ...]]:
    return {"attn_norm.weight": (EMBEDDING,), "ssm_in.weight": (2 * EMBEDDING, EMBEDDING)} | feed_forward()


def mla() -> dict[str, tuple[int, ...]]:
    return {
        "attn_norm.weight": (EMBEDDING,),
        "attn_q.weight": (HEADS * HEAD_LENGTH, EMBEDDING),
        "attn_kv_a_mqa.weight": (40, EMBEDDING),
        "attn_kv_b.weight": (EMBEDDING, 32),
        "attn_output.weight": (EMBEDDING, HEADS * HEAD_LENGTH),
    } | experts()


LLAMA = Tiny("llama", keys={"attention.layer_norm_rms_epsilon": 1e-5, "rope.dimension_count": HEAD_LENGTH})
MIXTURE = Tiny(
    "qwen3moe", tensors={block: attention() | experts() for block in range(4)}, keys={"expert_count": 4}
)

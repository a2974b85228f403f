"""Small models with random weights that llama-server really loads: the tokenizer is a real model's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

GEMMA_NORMS = ("post_attention_norm.weight", "post_ffw_norm.weight")
HEAD_NORMS = ("attn_q_norm.weight", "attn_k_norm.weight")


@dataclass(frozen=True)
class Loadable:
    architecture: str
    blocks: int
    embedding: int
    feed_forward: int
    heads: int
    kv_heads: int
    head_length: int = 64
    experts: int = 0
    window: int = 0
    norms: tuple[str, ...] = ()

    def write(self, path: Path, tokenizer_of: Path) -> Path:
        writer = gguf.GGUFWriter(path, self.architecture)
        vocabulary = copy_tokenizer(writer, tokenizer_of)
        self._add_keys(writer, vocabulary)
        self._add_tensors(writer, vocabulary)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def _add_keys(self, writer: gguf.GGUFWriter, vocabulary: int) -> None:
        writer.add_name(f"random {self.architecture}")
        writer.add_block_count(self.blocks)
        writer.add_context_length(8192)
        writer.add_embedding_length(self.embedding)
        writer.add_feed_forward_length(self.feed_forward)
        writer.add_head_count(self.heads)
        writer.add_head_count_kv(self.kv_heads)
        writer.add_key_length(self.head_length)
        writer.add_value_length(self.head_length)
        writer.add_rope_dimension_count(self.head_length)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_vocab_size(vocabulary)
        if self.experts:
            writer.add_expert_count(self.experts)
            writer.add_expert_used_count(2)
            writer.add_expert_feed_forward_length(self.feed_forward)
        if self.window:
            writer.add_sliding_window(self.window)

    def _add_tensors(self, writer: gguf.GGUFWriter, vocabulary: int) -> None:
        rng = np.random.default_rng(1)
        shapes = {"token_embd.weight": (vocabulary, self.embedding), "output_norm.weight": (self.embedding,)}
        for block in range(self.blocks):
            shapes |= {f"blk.{block}.{name}": shape for name, shape in self._block().items()}
        for name, shape in shapes.items():
            kind = np.float32 if len(shape) == 1 or "gate_inp" in name else np.float16
            writer.add_tensor(name, rng.normal(scale=0.02, size=shape).astype(kind))

    def _block(self) -> dict[str, tuple[int, ...]]:
        width, inner = self.embedding, self.feed_forward
        rows, kv_rows = self.heads * self.head_length, self.kv_heads * self.head_length
        attention: dict[str, tuple[int, ...]] = {
            "attn_norm.weight": (width,),
            "attn_q.weight": (rows, width),
            "attn_k.weight": (kv_rows, width),
            "attn_v.weight": (kv_rows, width),
            "attn_output.weight": (width, rows),
            "ffn_norm.weight": (width,),
        }
        norms = {name: (self.head_length if name in HEAD_NORMS else width,) for name in self.norms}
        return attention | norms | self._feed_forward(width, inner)

    def _feed_forward(self, width: int, inner: int) -> dict[str, tuple[int, ...]]:
        if not self.experts:
            return {
                "ffn_gate.weight": (inner, width),
                "ffn_up.weight": (inner, width),
                "ffn_down.weight": (width, inner),
            }
        return {
            "ffn_gate_inp.weight": (self.experts, width),
            "ffn_gate_exps.weight": (self.experts, inner, width),
            "ffn_up_exps.weight": (self.experts, inner, width),
            "ffn_down_exps.weight": (self.experts, width, inner),
        }


DENSE = Loadable("llama", blocks=4, embedding=256, feed_forward=1024, heads=4, kv_heads=2)
MIXTURE = Loadable(
    "qwen3moe", blocks=4, embedding=256, feed_forward=384, heads=4, kv_heads=2, experts=8, norms=HEAD_NORMS
)
WINDOWED = Loadable(
    "gemma3",
    blocks=12,
    embedding=256,
    feed_forward=512,
    heads=4,
    kv_heads=2,
    window=512,
    norms=HEAD_NORMS + GEMMA_NORMS,
)


def copy_tokenizer(writer: gguf.GGUFWriter, source: Path) -> int:
    """Every tokenizer key of a real model; the size of its vocabulary."""
    reader = gguf.GGUFReader(source)
    for key, entry in reader.fields.items():
        if not key.startswith("tokenizer."):
            continue
        if entry.types[0] == gguf.GGUFValueType.ARRAY:
            writer.add_array(key, entry.contents())
        else:
            writer.add_key_value(key, entry.contents(), entry.types[0])
    return len(reader.fields["tokenizer.ggml.tokens"].data)

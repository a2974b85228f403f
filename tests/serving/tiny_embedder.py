"""A BERT of four blocks with weights by chance, which llama.cpp takes for a model that makes embeddings."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

LENGTH, HEADS, FEED_FORWARD, BLOCKS, CONTEXT_TOKENS = 32, 2, 64, 4, 64
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = [*SPECIAL, *(f"\u2581{letter}" for letter in "abcdefghijklmnopqrstuvwxyz")]
MEAN = 1


def write_embedder(path: Path) -> Path:
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_name("tiny embedder")
    writer.add_block_count(BLOCKS)
    writer.add_context_length(CONTEXT_TOKENS)
    writer.add_embedding_length(LENGTH)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    writer.add_uint32("bert.pooling_type", MEAN)
    add_words(writer)
    rng = np.random.default_rng(7)
    for name, shape in shapes().items():
        writer.add_tensor(name, (rng.normal(size=shape) * spread(name)).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def spread(name: str) -> float:
    """Words weigh more than what is added to all of them, so that texts come out apart."""
    if name.endswith(".bias"):
        return 0.02
    return 2.0 if name.startswith("token_embd") or "norm" in name else 0.3


def add_words(writer: gguf.GGUFWriter) -> None:
    writer.add_tokenizer_model("bert")
    writer.add_token_list(WORDS)
    writer.add_token_types([3 if word in SPECIAL else 1 for word in WORDS])
    writer.add_token_scores([0.0] * len(WORDS))
    writer.add_uint32("tokenizer.ggml.token_type_count", 2)
    roles = {"padding": 0, "unknown": 1, "cls": 2, "bos": 2, "seperator": 3, "eos": 3, "mask": 4}
    for name, number in roles.items():
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", number)


def shapes() -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (len(WORDS), LENGTH),
        "position_embd.weight": (CONTEXT_TOKENS, LENGTH),
        "token_types.weight": (2, LENGTH),
        **with_bias("token_embd_norm", LENGTH),
    }
    for block in range(BLOCKS):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            found |= with_bias(f"blk.{block}.{name}", LENGTH, LENGTH)
        found |= with_bias(f"blk.{block}.attn_output_norm", LENGTH)
        found |= with_bias(f"blk.{block}.ffn_up", FEED_FORWARD, LENGTH)
        found |= with_bias(f"blk.{block}.ffn_down", LENGTH, FEED_FORWARD)
        found |= with_bias(f"blk.{block}.layer_output_norm", LENGTH)
    return found


def with_bias(name: str, *shape: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": shape, f"{name}.bias": shape[:1]}

"""Latency tables of a model that was never timed on a device, estimated from those of one that was."""

from __future__ import annotations

from typing import Any

from inventory.core.model_shape import BlockShape, ModelShape
from inventory.core.profile import DECODE, PREFILL

PIECE_TOKENS = 512  # llama.cpp takes a prompt in pieces of this many tokens


def estimated_tables(tables: dict[str, Any], timed: ModelShape, other: ModelShape) -> dict[str, Any]:
    """The two tables of a cluster file for `other`, from those of `timed` on the same device.

    A decode step is bound by the bytes that it reads, a prompt by the weights that it goes through.
    """
    head = other.output_bytes / max(timed.output_bytes, 1)
    decode = [decode_factor(timed, other, tokens) for tokens in tables[DECODE]["micro_batch"]]
    prefill = [prefill_factor(timed, other, tokens) for tokens in tables[PREFILL]["tokens"]]
    return {
        DECODE: _scaled(tables[DECODE], decode, head),
        PREFILL: _scaled(tables[PREFILL], prefill, head),
    }


def decode_factor(timed: ModelShape, other: ModelShape, tokens: float) -> float:
    """How many times longer a block of `other` takes for a decode step of that many tokens."""
    return touched_bytes(other, tokens) / touched_bytes(timed, tokens)


def prefill_factor(timed: ModelShape, other: ModelShape, tokens: float) -> float:
    """The same for a prompt: what counts is how many weights there are, not how many bits each has."""
    piece = min(tokens, PIECE_TOKENS)
    return decode_factor(timed, other, piece) * weight_bytes(timed) / weight_bytes(other)


def touched_bytes(shape: ModelShape, tokens: float) -> float:
    """Bytes of a mean block that a batch of tokens reads: of the experts those that some token is sent to."""
    share = 1.0
    if shape.experts:
        share -= (1 - shape.experts_used / shape.experts) ** tokens
    return max(sum(_touched(block, share) for block in shape.blocks), 1.0) / len(shape.blocks)


def weight_bytes(shape: ModelShape) -> float:
    """Mean bytes of one weight."""
    return max(shape.weight_bytes, 1) / max(shape.parameters, 1)


def _touched(block: BlockShape, share: float) -> float:
    """A block's resident bytes are what surrounds its experts; without experts it counts as a whole."""
    if not block.resident_bytes:
        return block.size_bytes
    return block.resident_bytes + share * (block.size_bytes - block.resident_bytes)


def _scaled(table: dict[str, Any], factors: list[float], head: float) -> dict[str, Any]:
    scaled = dict(table)
    for name in ("gpu_block_seconds", "cpu_block_seconds"):
        if table[name] is not None:
            scaled[name] = [
                float(f"{seconds * factor:.6g}") for seconds, factor in zip(table[name], factors, strict=True)
            ]
    scaled["head_seconds"] = [float(f"{seconds * head:.6g}") for seconds in table["head_seconds"]]
    return scaled

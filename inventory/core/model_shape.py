"""What a model is to the planner: its blocks and their kinds, bytes and KV cache, read from GGUF headers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from inventory.core.gguf import GgufError, Header, Tensor
from inventory.core.model_keys import FILE_TYPES, Keys, window_pattern
from inventory.core.quantities import counted

BLOCK_TENSOR = re.compile(r"^blk\.(\d+)\.(.+)$")
EXPERT_TENSOR = re.compile(r"^ffn_(up|down|gate|gate_up)_(ch)?exps\b")
F16_BYTES, F32_BYTES = 2, 4
KV_TYPE_BYTES = {"f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32, "q4_1": 20 / 32}
KV_CELL_GROUP = 256
MAX_SHARDS = 1_000


@dataclass(frozen=True)
class BlockShape:
    """One transformer block: `kv_bytes_per_token` is for an f16 cache, 0 where the block keeps none."""

    kind: str
    tensor_bytes: dict[str, int]
    size_bytes: int
    resident_bytes: int
    kv_bytes_per_token: int
    window_tokens: int | None
    state_bytes: int

    def kv_bytes(self, context_tokens: int, *, full_cache: bool, kv_type: str = "f16") -> int:
        """Cache of one slot; `full_cache` is llama.cpp's --swa-full, which a KV hand-over needs."""
        rows = _kv_rows(context_tokens, None if full_cache else self.window_tokens)
        return round(rows * self.kv_bytes_per_token * KV_TYPE_BYTES[kv_type] / F16_BYTES) + self.state_bytes


@dataclass(frozen=True)
class ModelShape:
    architecture: str
    name: str
    quantisation: str
    blocks: tuple[BlockShape, ...]
    embedding_length: int
    output_bytes: int
    embedding_bytes: int
    vocabulary: int
    context_train: int
    has_chat_template: bool
    shards: int
    file_bytes: int
    weight_bytes: int
    parameters: int
    experts: int
    experts_used: int
    is_tied: bool
    is_mla: bool
    feed_forward_length: int
    notes: tuple[str, ...] = ()
    pooling: str = ""  # how an embedding is made of its tokens; empty for a model that makes text

    @property
    def makes_embeddings(self) -> bool:
        return bool(self.pooling)

    @property
    def problem(self) -> str:
        """Why no server could run it, though its header can be read; empty for a model that makes sense."""
        if not self.weight_bytes:
            return "the file holds no tensors: it is a vocabulary or an unfinished conversion, not a model"
        if not any(block.size_bytes for block in self.blocks):
            return "no block of the model has any tensor in the files: get all of its files"
        if not self.embedding_length:
            return f"{self.architecture}.embedding_length is 0; a model needs one of 1 or more"
        return ""

    @property
    def block_kinds(self) -> dict[str, int]:
        return dict(Counter(block.kind for block in self.blocks))

    @property
    def has_windows(self) -> bool:
        return any(block.window_tokens is not None for block in self.blocks)

    @property
    def is_recurrent(self) -> bool:
        return any(block.kind.startswith(("recurrent", "hybrid")) for block in self.blocks)

    @property
    def is_moe(self) -> bool:
        return any(block.resident_bytes for block in self.blocks)

    @property
    def can_hand_over(self) -> bool:
        """Recurrent state is not in llama.cpp's slot files, so such a model cannot move between replicas."""
        return not self.is_recurrent

    @property
    def period_blocks(self) -> int:
        """Fewest first blocks after which the mix of kinds repeats; a slice keeps whole periods."""
        kinds = [block.kind for block in self.blocks]
        for period in range(1, len(kinds) // 2 + 1):
            if all(kinds[index] == kinds[index % period] for index in range(len(kinds))):
                return period
        return 1 if len(set(kinds)) == 1 else len(kinds)

    @property
    def head_blocks(self) -> float:
        """Bytes of the head in mean blocks."""
        return self.output_bytes * len(self.blocks) / max(sum(block.size_bytes for block in self.blocks), 1)

    @property
    def untied_embedding_bytes(self) -> int:
        """What the embedding takes beside the head in one pool of memory; a GPU has a copy of a tied one."""
        return max(self.embedding_bytes - self.output_bytes, 0) if self.is_tied else self.embedding_bytes

    def kv_bytes_per_token(self) -> int:
        return sum(block.kv_bytes_per_token for block in self.blocks)

    def cache_read_bytes(self, context_tokens: float) -> float:
        """What one more token reads of a cache with that many tokens; windows keep it bounded."""
        return sum(
            block.kv_bytes_per_token * min(context_tokens, block.window_tokens or context_tokens)
            for block in self.blocks
        )

    def handover_bytes_per_token(self) -> int:
        """Bytes a hand-over moves for one more token of prompt once every window is full."""
        return sum(block.kv_bytes_per_token for block in self.blocks if block.window_tokens is None)

    def handover_bytes_per_request(self) -> int:
        return sum(
            block.kv_bytes_per_token * block.window_tokens
            for block in self.blocks
            if block.window_tokens is not None
        )

    def compute_bytes(
        self, micro_batch_tokens: int = 512, cache_tokens: int = 0, *, master: bool = True
    ) -> int:
        """A device's compute buffer: one micro-batch through the widest part, and its mask over the cache in f16.

        The allocator shares memory between steps; measured buffers were 0 to 11 % below this. A worker does without
        the input and the output of the model.
        """
        widest = (4 if master else 2) * self.embedding_length + 3 * self.feed_forward_length * max(
            self.experts_used, 1
        )
        return micro_batch_tokens * (F32_BYTES * widest + F16_BYTES * cache_tokens)

    def logits_bytes(self, slots: int) -> int:
        """The master's output buffer: one row of logits for every slot, as the load log says."""
        return slots * self.vocabulary * F32_BYTES

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ModelShape:
        blocks = tuple(BlockShape(**block) for block in data["blocks"])
        return cls(**{**data, "blocks": blocks, "notes": tuple(data["notes"])})


def shape_of(headers: Sequence[Header]) -> ModelShape:
    """The shape of a model from the headers of all its files, first shard first."""
    shape = _outline(headers[0], [tensor for header in headers for tensor in header.tensors])
    shards = headers[0].values.get("split.count", 1)
    if not isinstance(shards, int) or not 0 <= shards <= MAX_SHARDS:
        raise GgufError(f"split.count is {str(shards)[:60]}; 0 to {MAX_SHARDS} are possible")
    shape = replace(
        shape, shards=max(int(shards), 1), file_bytes=sum(header.file_bytes for header in headers)
    )
    if problem := shape.problem:
        raise GgufError(problem)
    if shape.shards != len(headers):
        note = f"{len(headers)} of {counted(shape.shards, 'file')} were read; sizes cover only those"
        return replace(shape, notes=(*shape.notes, note))
    return shape


def _outline(first: Header, tensors: list[Tensor]) -> ModelShape:
    keys = Keys(first.values)
    by_block, others = _grouped(tensors, keys.block_count)
    blocks, notes = _blocks(keys, by_block)
    embedding = others.get("token_embd.weight", 0) + others.get("per_layer_token_embd.weight", 0)
    head = sum(size for name, size in others.items() if name.startswith("output"))
    is_tied = "output.weight" not in others
    return ModelShape(
        architecture=keys.architecture,
        name=keys.name,
        quantisation=_quantisation(first, tensors),
        blocks=blocks,
        embedding_length=keys.integer("embedding_length"),
        output_bytes=head + (others.get("token_embd.weight", 0) if is_tied else 0),
        embedding_bytes=embedding,
        vocabulary=_vocabulary(first, keys, tensors),
        context_train=keys.integer("context_length", 0),
        has_chat_template=first.entry("tokenizer.chat_template") is not None,
        shards=1,
        file_bytes=first.file_bytes,
        weight_bytes=sum(tensor.size_bytes for tensor in tensors),
        parameters=sum(_elements(tensor) for tensor in tensors),
        experts=keys.integer("expert_count", 0),
        experts_used=keys.integer("expert_used_count", 0),
        is_tied=is_tied,
        is_mla=keys.is_mla,
        feed_forward_length=_feed_forward(keys),
        notes=notes,
        pooling=keys.pooling,
    )


def _feed_forward(keys: Keys) -> int:
    """The length that activations reach inside a block; that of one expert where there are experts."""
    dense = max(keys.per_block("feed_forward_length", 0))
    return keys.integer("expert_feed_forward_length", dense) or dense


def _grouped(tensors: list[Tensor], block_count: int) -> tuple[list[dict[str, int]], dict[str, int]]:
    blocks: list[dict[str, int]] = [{} for _ in range(block_count)]
    others: dict[str, int] = {}
    for tensor in tensors:
        match = BLOCK_TENSOR.match(tensor.name)
        if match is None:
            others[tensor.name] = tensor.size_bytes
        elif int(match[1]) >= block_count:
            raise GgufError(
                f"{tensor.name} belongs to a block that the {counted(block_count, 'block')} of the model do not have"
            )
        else:
            blocks[int(match[1])][match[2]] = tensor.size_bytes
    return blocks, others


def _blocks(keys: Keys, by_block: list[dict[str, int]]) -> tuple[tuple[BlockShape, ...], tuple[str, ...]]:
    windows, notes = window_pattern(keys)
    shared_from = len(by_block) - keys.integer("attention.shared_kv_layers", 0)
    blocks = []
    for index, tensors in enumerate(by_block):
        recurrent, attends = _mixers(tensors)
        if attends and tensors and not keys.is_mla and not keys.per_block("attention.head_count", 0)[index]:
            raise GgufError(
                f"block {index} attends, but {keys.architecture}.attention.head_count is 0 there; 1 or more are needed"
            )
        kv_bytes = (
            keys.kv_bytes_per_token(index, bool(windows[index])) if attends and index < shared_from else 0
        )
        window = windows[index] if kv_bytes else None
        blocks.append(_block(keys, tensors, kv_bytes, window, recurrent))
    empty = [str(index) for index, tensors in enumerate(by_block) if not tensors]
    if empty and len(empty) < len(by_block):
        notes = (*notes, f"blocks without tensors in the files read: {', '.join(empty[:8])}")
    return tuple(blocks), notes


def _mixers(tensors: dict[str, int]) -> tuple[bool, bool]:
    """Whether a block keeps recurrent state, and whether it keeps a KV cache, told by its tensors."""
    starts = tuple(tensors)
    recurrent = any(name.startswith(("ssm_", "time_mix_", "shortconv.")) for name in starts)
    separate = any(name.startswith(("attn_k.", "attn_kv", "attn_k_b")) for name in starts)
    fused = any(name.startswith("attn_qkv") for name in starts)
    return recurrent, separate or (fused and not recurrent) or not tensors


def _block(
    keys: Keys, tensors: dict[str, int], kv_bytes: int, window: int | None, recurrent: bool
) -> BlockShape:
    total = sum(tensors.values())
    experts = sum(size for name, size in tensors.items() if EXPERT_TENSOR.match(name))
    mixer = "window" if window else "full" if kv_bytes else "recurrent" if recurrent else "shared"
    if recurrent and kv_bytes:
        mixer = "hybrid"
    return BlockShape(
        kind=f"{mixer}-moe" if experts else mixer,
        tensor_bytes=tensors,
        size_bytes=total,
        resident_bytes=total - experts if experts else 0,
        kv_bytes_per_token=kv_bytes,
        window_tokens=window,
        state_bytes=keys.state_bytes() if recurrent else 0,
    )


def _vocabulary(first: Header, keys: Keys, tensors: list[Tensor]) -> int:
    tokens = first.entry("tokenizer.ggml.tokens")
    if tokens is not None:
        return tokens.items
    embedding = next((tensor for tensor in tensors if tensor.name == "token_embd.weight"), None)
    return embedding.shape[-1] if embedding else keys.integer("vocab_size", 0)


def _quantisation(first: Header, tensors: list[Tensor]) -> str:
    file_type = first.values.get("general.file_type")
    if isinstance(file_type, int) and file_type in FILE_TYPES:
        return FILE_TYPES[file_type]
    sizes: Counter[str] = Counter()
    for tensor in tensors:
        sizes[tensor.type_name] += tensor.size_bytes
    return sizes.most_common(1)[0][0] if sizes else "unknown"


def _elements(tensor: Tensor) -> int:
    elements = 1
    for length in tensor.shape:
        elements *= length
    return elements


def _kv_rows(context_tokens: int, window: int | None, micro_batch_tokens: int = 512) -> int:
    """llama.cpp keeps a window and one micro-batch, in groups of 256 cells."""
    rows = context_tokens if window is None else min(context_tokens, window + micro_batch_tokens)
    return in_groups(rows)


def in_groups(rows: int) -> int:
    """Cells of a cache that holds this many rows."""
    return -(-rows // KV_CELL_GROUP) * KV_CELL_GROUP

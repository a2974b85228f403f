"""Reads the metadata keys of an architecture: scalars or one value a block, windows, KV and state sizes."""

from __future__ import annotations

from inventory.core.gguf import GgufError, Value
from inventory.core.quantities import visible

MAX_BLOCKS = 4_096
F16_BYTES, F32_BYTES = 2, 4

# llama.cpp's default pattern where the file names only a window: every n-th block attends to everything
WINDOW_PERIODS = {
    "gemma2": 2, "gemma3": 6, "gemma3n": 5, "gpt-oss": 2, "cohere2": 4, "llama4": 4, "exaone4": 4, "olmo2": 4,
}  # fmt: skip

# llama.cpp's numbers; 0 is none, 4 ranks pairs of texts
POOLINGS = {1: "mean", 2: "cls", 3: "last"}
UNPOOLED = (0,)
DEFAULT_POOLING = "mean"
ENCODERS = {
    "bert", "nomic-bert", "nomic-bert-moe", "jina-bert-v2", "jina-bert-v3", "modern-bert", "neo-bert", "eurobert",
    "gemma-embedding", "llama-embed", "t5encoder",
}  # fmt: skip

FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S",
    12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K",
    19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL",
    26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0",
    37: "TQ2_0", 38: "MXFP4_MOE",
}  # fmt: skip


class Keys:
    """Access to `<architecture>.*`; a missing key without a default is an error that names it."""

    def __init__(self, values: dict[str, Value]) -> None:
        self.values = values
        architecture = values.get("general.architecture")
        if not isinstance(architecture, str) or not architecture:
            raise GgufError(
                "general.architecture is missing: not a language model, or a later shard of a split one"
            )
        if not architecture.isprintable():
            raise GgufError(
                f"general.architecture is {architecture[:60]!r}; control characters belong in no name"
            )
        self.architecture = architecture
        if values.get("general.type", "model") != "model":
            raise GgufError(f"the file holds a {values['general.type']!r} and not a model")
        self.block_count = self._block_count()

    @property
    def name(self) -> str:
        name = self.values.get("general.name") or self.values.get("general.basename") or self.architecture
        return visible(str(name))[:200]

    @property
    def pooling(self) -> str:
        """What makes one embedding of a text's tokens; empty where the model makes text, or ranks."""
        named = self._value("pooling_type")
        if isinstance(named, int) and named not in UNPOOLED:
            return POOLINGS.get(named, "")
        return DEFAULT_POOLING if self.architecture in ENCODERS else ""

    @property
    def is_mla(self) -> bool:
        return self._value("attention.kv_lora_rank") is not None

    def _value(self, key: str) -> Value | None:
        return self.values.get(f"{self.architecture}.{key}")

    def _block_count(self) -> int:
        count = self.integer("block_count")
        if not 1 <= count <= MAX_BLOCKS:
            raise GgufError(f"{self.architecture}.block_count is {count}; 1 to {MAX_BLOCKS} are possible")
        return count

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._value(key)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 40:
            return value
        if value is None and default is not None:
            return default
        if value is None:
            raise GgufError(f"the key {self.architecture}.{key} is missing")
        raise GgufError(f"{self.architecture}.{key} is {str(value)[:60]}; a whole number is needed")

    def per_block(self, key: str, default: int | None = None) -> tuple[int, ...]:
        """One value a block, whether the file holds a scalar or an array."""
        value = self._value(key)
        if not isinstance(value, tuple):
            return (self.integer(key, default),) * self.block_count
        if len(value) < self.block_count:
            raise GgufError(f"{self.architecture}.{key} has {len(value)} items for {self.block_count} blocks")
        if any(not isinstance(item, int) or not 0 <= item < 1 << 40 for item in value):
            raise GgufError(f"{self.architecture}.{key} holds an item that is not a whole number from 0")
        return tuple(int(item) for item in value[: self.block_count])

    def kv_bytes_per_token(self, block: int, in_window: bool) -> int:
        """Bytes of f16 cache that one token adds in this block."""
        if self.is_mla:
            row = self.integer("attention.kv_lora_rank") + self.integer("rope.dimension_count", 64)
            return row * F16_BYTES
        heads = self.per_block("attention.head_count", 0)[block]
        kv_heads = self.per_block("attention.head_count_kv", heads)[block]
        default = self.integer("embedding_length") // heads if heads else 0
        suffix = "_swa" if in_window and self._value("attention.key_length_swa") is not None else ""
        key_length = self.integer(f"attention.key_length{suffix}", default)
        value_length = self.integer(f"attention.value_length{suffix}", default)
        return kv_heads * (key_length + value_length) * F16_BYTES

    def state_bytes(self) -> int:
        """Bytes of recurrent state that one slot keeps in one recurrent block (llama.cpp keeps it in f32)."""
        inner, state = self.integer("ssm.inner_size", 0), self.integer("ssm.state_size", 0)
        if inner:
            groups = self.integer("ssm.group_count", 0)
            kernel = max(self.integer("ssm.conv_kernel", 1), 1)
            return ((kernel - 1) * (inner + 2 * groups * state) + state * inner) * F32_BYTES
        embedding = self.integer("embedding_length")
        head = self.integer("wkv.head_size", 0)
        if head:
            return embedding * (self.integer("token_shift_count", 2) + head) * F32_BYTES
        return embedding * max(self.integer("shortconv.l_cache", 1) - 1, 1) * F32_BYTES


def window_pattern(keys: Keys) -> tuple[tuple[int | None, ...], tuple[str, ...]]:
    """The sliding window of each block (None where it attends to everything), and what had to be assumed."""
    count = keys.block_count
    window = keys.integer("attention.sliding_window", 0)
    if keys.architecture == "llama4" and not window:
        window = keys.integer("attention.chunk_size", 0)
    if not window:
        return (None,) * count, ()
    pattern = keys.values.get(f"{keys.architecture}.attention.sliding_window_pattern")
    if isinstance(pattern, tuple):
        flags = [bool(item) for item in pattern[:count]]
        if len(flags) < count:
            raise GgufError(f"attention.sliding_window_pattern has {len(flags)} items for {count} blocks")
    else:
        period = (
            int(pattern) if isinstance(pattern, int) and pattern else WINDOW_PERIODS.get(keys.architecture, 0)
        )
        if period == 0:
            note = f"a window of {window} tokens without a known pattern: planned as full attention"
            return (None,) * count, (note,)
        flags = [index % period < period - 1 for index in range(count)]
    return tuple(window if flag else None for flag in flags), ()

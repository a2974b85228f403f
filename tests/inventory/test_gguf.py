"""The header reader on many architectures and on hostile files."""

from __future__ import annotations

import struct
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inventory.core.gguf import GgufError, GgufTruncated, Header, header_from_bytes, read_header
from inventory.core.model_shape import ModelShape, shape_of
from tests.inventory import tiny_models as tiny
from tests.inventory.tiny_models import HEAD_LENGTH, KV_HEADS, Tiny

KV = KV_HEADS * HEAD_LENGTH * 2 * 2  # key and value rows, two bytes each


def header_of(path: Path) -> Header:
    with path.open("rb") as file:
        return read_header(file, path.stat().st_size)


def shape(model: Tiny, tmp_path: Path) -> ModelShape:
    return shape_of([header_of(model.write(tmp_path / "model.gguf"))])


def test_a_real_model_is_read_as_it_is(small_model: Path) -> None:
    found = shape_of([header_of(small_model)])
    assert (found.architecture, len(found.blocks), found.quantisation) == ("llama", 30, "Q4_1")
    assert (found.embedding_length, found.vocabulary, found.context_train) == (576, 49152, 8192)
    assert found.is_tied and found.has_chat_template and found.can_hand_over
    assert found.kv_bytes_per_token() == 30 * 3 * 64 * 2 * 2
    assert found.blocks[0].size_bytes == sum(found.blocks[0].tensor_bytes.values()) == 2216448


def test_the_shape_survives_its_json(tmp_path: Path) -> None:
    found = shape(tiny.MIXTURE, tmp_path)
    assert ModelShape.from_dict(found.to_dict()) == found


WINDOWED = {
    "attention.sliding_window": 512,
    "attention.key_length": HEAD_LENGTH,
    "attention.value_length": HEAD_LENGTH,
}
ARCHITECTURES: list[tuple[Tiny, list[str], int, list[int]]] = [
    # what is written, kinds of the blocks, period, KV bytes a token of each block
    (tiny.LLAMA, ["full"] * 4, 1, [KV] * 4),
    (Tiny("qwen3", is_tied=True), ["full"] * 4, 1, [KV] * 4),
    (tiny.MIXTURE, ["full-moe"] * 4, 1, [KV] * 4),
    (Tiny("gemma3", blocks=12, keys=WINDOWED), (["window"] * 5 + ["full"]) * 2, 6, [KV] * 12),
    (
        Tiny(
            "gpt-oss", keys=WINDOWED, tensors={block: tiny.attention() | tiny.experts() for block in range(4)}
        ),
        ["window-moe", "full-moe"] * 2,
        2,
        [KV] * 4,
    ),
    (
        Tiny("gemma4", keys=WINDOWED | {"attention.sliding_window_pattern": [True, True, True, False]}),
        ["window"] * 3 + ["full"],
        4,
        [KV] * 4,
    ),
    (Tiny("mistral9", keys={"attention.sliding_window": 512}), ["full"] * 4, 1, [KV] * 4),
    (
        Tiny("openelm", keys={"attention.head_count_kv": [1, 2, 2, 4], "attention.head_count": [4, 4, 4, 4]}),
        ["full"] * 4,
        1,
        [KV // 2, KV, KV, 2 * KV],
    ),
    (
        Tiny(
            "deepseek2",
            tensors=dict.fromkeys(range(4), tiny.mla()),
            keys={"attention.kv_lora_rank": 32, "rope.dimension_count": 8},
        ),
        ["full-moe"] * 4,
        1,
        [40 * 2] * 4,
    ),
    (
        Tiny(
            "mamba2",
            tensors=dict.fromkeys(range(4), tiny.recurrent()),
            keys={"ssm.inner_size": 128, "ssm.state_size": 16, "ssm.conv_kernel": 4, "ssm.group_count": 1},
        ),
        ["recurrent"] * 4,
        1,
        [0] * 4,
    ),
    (
        Tiny(
            "granitehybrid",
            tensors={block: tiny.dense() if block % 4 == 3 else tiny.recurrent() for block in range(8)},
            blocks=8,
            keys={"ssm.inner_size": 128, "ssm.state_size": 16, "ssm.conv_kernel": 4},
        ),
        (["recurrent"] * 3 + ["full"]) * 2,
        4,
        [0, 0, 0, KV] * 2,
    ),
    (
        Tiny(
            "falcon-h1",
            tensors=dict.fromkeys(range(4), tiny.dense() | tiny.recurrent()),
            keys={"ssm.inner_size": 64},
        ),
        ["hybrid"] * 4,
        1,
        [KV] * 4,
    ),
]


@pytest.mark.parametrize(
    "written, kinds, period, kv_bytes", ARCHITECTURES, ids=lambda value: getattr(value, "architecture", "")
)
def test_block_kinds_and_cache_of_many_architectures(
    written: Tiny, kinds: list[str], period: int, kv_bytes: list[int], tmp_path: Path
) -> None:
    found = shape(written, tmp_path)
    assert [block.kind for block in found.blocks] == kinds
    assert found.period_blocks == period
    assert [block.kv_bytes_per_token for block in found.blocks] == kv_bytes
    assert found.is_recurrent == any("recurrent" in kind or "hybrid" in kind for kind in kinds)


def test_experts_leave_a_resident_part_on_the_gpu(tmp_path: Path) -> None:
    block = shape(tiny.MIXTURE, tmp_path).blocks[0]
    experts = sum(size for name, size in block.tensor_bytes.items() if "_exps" in name)
    assert block.resident_bytes == block.size_bytes - experts > 0


def test_a_window_keeps_only_its_rows_unless_the_cache_is_full(tmp_path: Path) -> None:
    block = shape(Tiny("gemma3", blocks=6, keys=WINDOWED), tmp_path).blocks[0]
    assert block.kv_bytes(8192, full_cache=False) == 1024 * KV
    assert block.kv_bytes(8192, full_cache=True) == 8192 * KV
    assert block.kv_bytes(8192, full_cache=True, kv_type="q8_0") == round(8192 * KV * 34 / 64)


def test_a_split_model_is_the_sum_of_its_files(tmp_path: Path) -> None:
    whole = header_of(tiny.LLAMA.write(tmp_path / "model.gguf"))
    half = len(whole.tensors) // 2
    first = Header(
        3, 32, whole.entries, whole.values | {"split.count": 2}, whole.tensors[:half], whole.data_start, 1000
    )
    second = Header(3, 32, (), {}, whole.tensors[half:], 64, 2000)
    both = shape_of([first, second])
    assert both.weight_bytes == sum(tensor.size_bytes for tensor in whole.tensors)
    assert (both.shards, both.file_bytes, both.notes) == (2, 3000, ())
    assert "1 of 2 files" in shape_of([first]).notes[-1]


def test_a_beginning_that_is_too_short_asks_for_more(small_model: Path) -> None:
    size = small_model.stat().st_size
    beginning = small_model.read_bytes()[: 4 * 2**20]
    with pytest.raises(GgufTruncated):
        header_from_bytes(beginning[:1000], size)
    assert header_from_bytes(beginning, size).file_bytes == size


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def preamble(tensors: int = 0, keys: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys)


def key(name: bytes, value_type: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", value_type) + value


def tensor(name: bytes, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    numbers = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + numbers + struct.pack("<IQ", kind, offset)


def number(name: str, value: int) -> bytes:
    return key(f"llama.{name}".encode(), 4, struct.pack("<I", value))


ARCHITECTURE = key(b"general.architecture", 8, text(b"llama"))
HOSTILE: dict[str, bytes] = {
    "empty": b"",
    "four bytes": b"GGUF",
    "another magic": b"PK\x03\x04" + bytes(60),
    "text": b"hello, this is not a model at all, it is a text",
    "version 1": preamble(version=1),
    "big-endian": preamble(version=0x03000000),
    "countless tensors": preamble(tensors=2**63),
    "countless keys": preamble(keys=2**64 - 1),
    "endless key": preamble(keys=1) + struct.pack("<Q", 2**62) + b"x",
    "endless text": preamble(keys=1) + text(b"a") + struct.pack("<IQ", 8, 2**63) + b"x" * 40,
    "endless array": preamble(keys=1) + text(b"a") + struct.pack("<IIQ", 9, 4, 2**61),
    "array of countless texts": preamble(keys=1) + text(b"a") + struct.pack("<IIQ", 9, 8, 7_000_000),
    "array of arrays": preamble(keys=1) + text(b"a") + struct.pack("<IIQ", 9, 9, 3) + bytes(64),
    "unknown value type": preamble(keys=1) + key(b"a", 77, bytes(16)),
    "key twice": preamble(keys=2) + key(b"a", 4, bytes(4)) * 2,
    "alignment of 0": preamble(keys=1) + key(b"general.alignment", 4, bytes(4)),
    "alignment of 33": preamble(keys=1) + key(b"general.alignment", 4, struct.pack("<I", 33)),
    "alignment as text": preamble(keys=1) + key(b"general.alignment", 8, text(b"32")),
    "nine dimensions": preamble(tensors=1) + tensor(b"t", (1,) * 9),
    "no dimensions": preamble(tensors=1) + tensor(b"t", ()),
    "shape that overflows": preamble(tensors=1) + tensor(b"t", (2**40, 2**40, 2**40)),
    "shape of zero": preamble(tensors=1) + tensor(b"t", (0, 32)),
    "unknown tensor type": preamble(tensors=1) + tensor(b"t", (32,), kind=99),
    "rows that no group fits": preamble(tensors=1) + tensor(b"t", (31,), kind=2),
    "data past the end": preamble(tensors=1) + tensor(b"t", (1024,)),
    "offset between boundaries": preamble(tensors=1) + tensor(b"t", (8,), offset=7) + bytes(200),
    "tensors that overlap": preamble(tensors=2)
    + tensor(b"a", (32,))
    + tensor(b"b", (32,), offset=32)
    + bytes(400),
    "tensor twice": preamble(tensors=2) + tensor(b"a", (8,)) + tensor(b"a", (8,), offset=32) + bytes(400),
}
WRONG_MODELS: dict[str, bytes] = {
    "no architecture": preamble(),
    "no block count": preamble(keys=1) + ARCHITECTURE,
    "blocks without end": preamble(keys=2)
    + ARCHITECTURE
    + key(b"llama.block_count", 10, struct.pack("<Q", 2**39)),
    "block count as text": preamble(keys=2) + ARCHITECTURE + key(b"llama.block_count", 8, text(b"many")),
    "negative blocks": preamble(keys=2) + ARCHITECTURE + key(b"llama.block_count", 5, struct.pack("<i", -4)),
    "no heads and no tensors": preamble(keys=5)
    + ARCHITECTURE
    + number("block_count", 2)
    + number("embedding_length", 64)
    + number("attention.head_count", 0)
    + number("attention.head_count_kv", 0),
    "an adapter": preamble(keys=2) + ARCHITECTURE + key(b"general.type", 8, text(b"adapter")),
}


SENSELESS: dict[str, tuple[Tiny, str]] = {
    "no heads": (Tiny("llama", keys={"attention.head_count": 0, "attention.head_count_kv": 0}), "head_count"),
    "a block without heads": (Tiny("llama", keys={"attention.head_count": [4, 4, 0, 4]}), "block 2 attends"),
    "no length": (Tiny("llama", keys={"embedding_length": 0}), "embedding_length is 0"),
    "empty blocks": (Tiny("llama", tensors={block: {} for block in range(4)}), "no block of the model"),
}


@pytest.mark.parametrize("name", SENSELESS)
def test_a_well_formed_header_of_no_possible_model_is_refused_in_words(name: str, tmp_path: Path) -> None:
    written, words = SENSELESS[name]
    with pytest.raises(GgufError, match=words):
        shape(written, tmp_path)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_header_is_refused_in_words(name: str) -> None:
    content = HOSTILE[name]
    with pytest.raises(GgufError) as caught:
        read_header(BytesIO(content), len(content))
    assert len(str(caught.value)) > 20


@pytest.mark.parametrize("name", WRONG_MODELS)
def test_a_header_that_is_no_language_model_is_refused_in_words(name: str) -> None:
    content = WRONG_MODELS[name]
    header = read_header(BytesIO(content + bytes(64)), len(content) + 64)
    with pytest.raises(GgufError, match=r"general\.|block|not a model"):
        shape_of([header])


def check_only_own_errors(content: bytes) -> None:
    """Whatever the bytes are, the answer is a shape or our own error."""
    try:
        shape_of([read_header(BytesIO(content), len(content))])
    except GgufError:
        return


@given(st.binary(max_size=600))
def test_random_bytes_only_raise_our_own_error(content: bytes) -> None:
    check_only_own_errors(preamble(2, 2) + content)


Mutate = Callable[[bytes], bytes]


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return tiny.LLAMA.write(tmp_path_factory.mktemp("gguf") / "model.gguf").read_bytes()


@given(st.data())
def test_flipped_bytes_only_raise_our_own_error(valid: bytes, data: st.DataObject) -> None:
    content = bytearray(valid)
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, min(len(content) - 1, 4000)))
        content[at] = data.draw(st.integers(0, 255))
    check_only_own_errors(bytes(content[: data.draw(st.integers(0, len(content)))]))

"""Reads the header of a GGUF file with bounded memory and never touches tensor data."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from typing import BinaryIO

MAGIC = b"GGUF"
OTHER_FILES = {
    b"vers": "it is a Git LFS pointer; fetch the file itself with git lfs pull",
    b"PK": "it is a zip or PyTorch file; convert it with llama.cpp's convert_hf_to_gguf.py",
    b"<": "it is a web page; download it again from its file address",
    b"{": "it is JSON text; download the model file itself",
    b"lmgg": "it is in llama.cpp's old GGML format; get the model as GGUF",
    b"tjgg": "it is in llama.cpp's old GGJT format; get the model as GGUF",
}
MAX_KEYS = 65_536
MAX_TENSORS = 262_144
MAX_NAME_BYTES = 1_024
MAX_HEADER_BYTES = 256 * 1024 * 1024
MAX_ARRAY_ITEMS = 8_000_000
MAX_KEPT_ITEMS = 4_096
MAX_KEPT_STRING_BYTES = 4_096
MAX_TENSOR_BYTES = 1 << 50

STRING, ARRAY = 8, 9
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

# ggml type number -> (name, elements in one quantisation group, bytes of one group)
GGML_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18),
}  # fmt: skip

Value = str | int | float | bool | tuple[int | float | bool, ...]


class GgufError(Exception):
    """The file is not a GGUF model that can be used; the text says why."""


class GgufTruncated(GgufError):
    """The bytes end inside the header: more of the file is needed to read it."""


@dataclass(frozen=True)
class Entry:
    """Where one metadata entry lies in the header; arrays carry their item type and count."""

    key: str
    value_type: int
    start: int
    value_start: int
    end: int
    item_type: int | None = None
    items: int = 0


@dataclass(frozen=True)
class Tensor:
    name: str
    shape: tuple[int, ...]
    type_number: int
    offset: int
    size_bytes: int

    @property
    def type_name(self) -> str:
        return GGML_TYPES[self.type_number][0]


@dataclass(frozen=True)
class Header:
    """Metadata of one file; `values` leaves out long strings and long arrays, `entries` lists everything."""

    version: int
    alignment: int
    entries: tuple[Entry, ...]
    values: dict[str, Value]
    tensors: tuple[Tensor, ...]
    data_start: int
    file_bytes: int

    def entry(self, key: str) -> Entry | None:
        return next((entry for entry in self.entries if entry.key == key), None)


class _Cursor:
    """Reads little-endian values and refuses to go past the end or past the header limit."""

    def __init__(self, stream: BinaryIO, available: int, is_whole_file: bool) -> None:
        self.stream = stream
        self.available = available
        self.is_whole_file = is_whole_file
        self.at = 0

    def _claim(self, count: int, what: str) -> None:
        if self.at + count > MAX_HEADER_BYTES:
            raise GgufError(f"{what} would make the header longer than {MAX_HEADER_BYTES >> 20} MiB")
        if self.at + count > self.available:
            if self.is_whole_file:
                raise GgufError(f"the file ends at byte {self.available} inside {what}: it is truncated")
            raise GgufTruncated(f"{what} lies beyond the first {self.available} bytes")
        self.at += count

    def take(self, count: int, what: str) -> bytes:
        self._claim(count, what)
        data = self.stream.read(count)
        if len(data) != count:
            raise GgufError(f"the file became shorter while {what} was read")
        return data

    def skip(self, count: int, what: str) -> None:
        self._claim(count, what)
        self.stream.seek(count, 1)

    def number(self, code: str, what: str) -> int | float | bool:
        value: int | float | bool = struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}"), what))[0]
        return value

    def count(self, what: str) -> int:
        return int(self.number("Q", what))

    def name(self, what: str) -> str:
        length = self.count(what)
        if length > MAX_NAME_BYTES:
            raise GgufError(f"{what} is {length} bytes long, more than {MAX_NAME_BYTES}")
        return self.take(length, what).decode("utf-8", "replace")


def read_header(stream: BinaryIO, file_bytes: int, available_bytes: int | None = None) -> Header:
    """The header of a GGUF file of `file_bytes`; `available_bytes` when the stream holds only its beginning."""
    available = file_bytes if available_bytes is None else min(available_bytes, file_bytes)
    cursor = _Cursor(stream, available, available >= file_bytes)
    version, tensor_count, key_count = _read_preamble(cursor, stream)
    entries: dict[str, Entry] = {}
    values: dict[str, Value] = {}
    for _ in range(key_count):
        entry, value = _read_entry(cursor)
        if entry.key in entries:
            raise GgufError(f"the key {entry.key!r} stands twice in the metadata")
        entries[entry.key] = entry
        if value is not None:
            values[entry.key] = value
    alignment = _alignment(values)
    tensors = tuple(_read_tensor(cursor) for _ in range(tensor_count))
    data_start = _padded(cursor.at, alignment)
    _check_tensors(tensors, data_start, alignment, file_bytes)
    return Header(version, alignment, tuple(entries.values()), values, tensors, data_start, file_bytes)


def header_from_bytes(beginning: bytes, file_bytes: int) -> Header:
    return read_header(BytesIO(beginning), file_bytes, len(beginning))


def tensor_bytes(shape: tuple[int, ...], type_number: int, name: str = "tensor") -> int:
    """Bytes that a tensor of this shape takes in the file."""
    if type_number not in GGML_TYPES:
        raise GgufError(f"{name} has the tensor type {type_number}, which is not known here")
    type_name, group, group_bytes = GGML_TYPES[type_number]
    elements = 1
    for length in shape:
        elements *= length
    if shape[0] % group:
        raise GgufError(
            f"{name} has rows of {shape[0]} elements, not a multiple of {group} as {type_name} needs"
        )
    return elements // group * group_bytes


def _looks_like(beginning: bytes) -> str:
    """What a file is that is no GGUF, with the remedy, from its first four bytes."""
    if not any(beginning):
        return "it begins with zeros, as an unfinished download does; download it again"
    known = next((text for start, text in OTHER_FILES.items() if beginning.startswith(start)), None)
    return known or "its first four bytes are not GGUF; it is damaged or something else, so download it again"


def _read_preamble(cursor: _Cursor, stream: BinaryIO) -> tuple[int, int, int]:
    if cursor.available < 24 and cursor.is_whole_file:
        found = stream.read(4)
        reason = (
            "too short for a GGUF" if found == MAGIC[: len(found)] else f"not a GGUF: {_looks_like(found)}"
        )
        raise GgufError(f"the file of {cursor.available} bytes is {reason}")
    magic = cursor.take(4, "the magic number")
    if magic != MAGIC:
        raise GgufError(f"not a GGUF file: {_looks_like(magic)}")
    version = int(cursor.number("I", "the version"))
    if version not in (2, 3):
        hint = " (big-endian file?)" if version in (0x02000000, 0x03000000) else ""
        raise GgufError(f"GGUF version {version}{hint} cannot be read; versions 2 and 3 can")
    tensor_count, key_count = cursor.count("the tensor count"), cursor.count("the key count")
    if tensor_count > MAX_TENSORS:
        raise GgufError(f"the header claims {tensor_count} tensors, more than {MAX_TENSORS}")
    if key_count > MAX_KEYS:
        raise GgufError(f"the header claims {key_count} metadata keys, more than {MAX_KEYS}")
    return version, tensor_count, key_count


def _read_entry(cursor: _Cursor) -> tuple[Entry, Value | None]:
    start = cursor.at
    key = cursor.name("a metadata key")
    value_type = int(cursor.number("I", f"the type of {key!r}"))
    value_start = cursor.at
    if value_type == ARRAY:
        item_type, items, kept = _read_array(cursor, key)
        return Entry(key, value_type, start, value_start, cursor.at, item_type, items), kept
    value = _read_scalar(cursor, key, value_type)
    return Entry(key, value_type, start, value_start, cursor.at), value


def _read_scalar(cursor: _Cursor, key: str, value_type: int) -> Value | None:
    if value_type == STRING:
        length = cursor.count(f"the length of {key!r}")
        if length > MAX_KEPT_STRING_BYTES:
            cursor.skip(length, f"the text of {key!r}")
            return None
        return cursor.take(length, f"the text of {key!r}").decode("utf-8", "replace")
    if value_type not in SCALARS:
        raise GgufError(f"the key {key!r} has the value type {value_type}, which GGUF does not have")
    return cursor.number(SCALARS[value_type], f"the value of {key!r}")


def _read_array(cursor: _Cursor, key: str) -> tuple[int, int, Value | None]:
    item_type = int(cursor.number("I", f"the item type of {key!r}"))
    items = cursor.count(f"the item count of {key!r}")
    if items > MAX_ARRAY_ITEMS:
        raise GgufError(f"the array {key!r} claims {items} items, more than {MAX_ARRAY_ITEMS}")
    if item_type == STRING:
        _skip_strings(cursor, key, items)
        return item_type, items, None
    if item_type not in SCALARS:
        raise GgufError(f"the array {key!r} holds items of type {item_type}, which cannot be read")
    code = SCALARS[item_type]
    total = items * struct.calcsize(f"<{code}")
    if items > MAX_KEPT_ITEMS:
        cursor.skip(total, f"the array {key!r}")
        return item_type, items, None
    return item_type, items, struct.unpack(f"<{items}{code}", cursor.take(total, f"the array {key!r}"))


def _skip_strings(cursor: _Cursor, key: str, items: int) -> None:
    what = f"the array {key!r}"
    unpack: Callable[[bytes], tuple[int]] = struct.Struct("<Q").unpack
    if cursor.at + 8 * items > MAX_HEADER_BYTES:
        raise GgufError(
            f"{what} of {items} texts would make the header longer than {MAX_HEADER_BYTES >> 20} MiB"
        )
    for _ in range(items):
        cursor.skip(unpack(cursor.take(8, what))[0], what)


def _read_tensor(cursor: _Cursor) -> Tensor:
    name = cursor.name("a tensor name")
    dimensions = int(cursor.number("I", f"the dimension count of {name}"))
    if not 1 <= dimensions <= 4:
        raise GgufError(f"{name} has {dimensions} dimensions; 1 to 4 are possible")
    shape = tuple(cursor.count(f"the shape of {name}") for _ in range(dimensions))
    type_number = int(cursor.number("I", f"the type of {name}"))
    offset = cursor.count(f"the offset of {name}")
    if min(shape) < 1 or max(shape) > MAX_TENSOR_BYTES:
        raise GgufError(f"{name} has the impossible shape {shape}")
    size = tensor_bytes(shape, type_number, name)
    if size > MAX_TENSOR_BYTES:
        raise GgufError(f"{name} claims {size} bytes")
    return Tensor(name, shape, type_number, offset, size)


def _alignment(values: dict[str, Value]) -> int:
    alignment = values.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 8 or alignment > 1 << 20 or alignment & (alignment - 1):
        raise GgufError(f"general.alignment is {alignment!r}; a power of two from 8 is needed")
    return alignment


def _padded(position: int, alignment: int) -> int:
    return (position + alignment - 1) // alignment * alignment


def _check_tensors(tensors: tuple[Tensor, ...], data_start: int, alignment: int, file_bytes: int) -> None:
    names: set[str] = set()
    end_before = 0
    for tensor in sorted(tensors, key=lambda item: item.offset):
        if tensor.name in names:
            raise GgufError(f"the tensor {tensor.name} stands twice in the header")
        names.add(tensor.name)
        if tensor.offset % alignment:
            raise GgufError(
                f"{tensor.name} begins at {tensor.offset}, not on a boundary of {alignment} bytes"
            )
        if tensor.offset < end_before:
            raise GgufError(f"{tensor.name} overlaps the tensor before it")
        end_before = tensor.offset + tensor.size_bytes
        if data_start + end_before > file_bytes:
            missing = data_start + end_before - file_bytes
            raise GgufError(
                f"the data of {tensor.name} ends {missing} bytes past the end: the file is truncated"
            )

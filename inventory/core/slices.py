"""Cuts a model down to some of its blocks: a new header and the byte ranges of the old files to copy.

A hollow slice has the same header and a hole where tensor data would be: dense kernels take the same time on zeros.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from inventory.core.gguf import ARRAY, MAGIC, SCALARS, STRING, Entry, GgufError, Header, Tensor
from inventory.core.model_shape import BLOCK_TENSOR

COPY_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class Range:
    """`length` bytes at `start` of file number `shard`, to be followed by `padding` zero bytes."""

    shard: int
    start: int
    length: int
    padding: int


@dataclass(frozen=True)
class SlicePlan:
    """Everything needed to write a slice: its header, then these ranges in order."""

    blocks: int
    header: bytes
    ranges: tuple[Range, ...]

    @property
    def file_bytes(self) -> int:
        return len(self.header) + sum(part.length + part.padding for part in self.ranges)


def first_blocks(count: int, total: int) -> list[int]:
    """Indices of the first `count` blocks of a model that has `total`."""
    if not 1 <= count <= total:
        raise GgufError(f"a slice of {count} blocks cannot be cut from {total}")
    return list(range(count))


def slice_depths(period_blocks: int, total: int, wanted: Sequence[int] = (2, 6)) -> list[int]:
    """Depths near `wanted` that hold whole periods of the block pattern, two at least where the model has room."""
    depths = {min(max(-(-depth // period_blocks) * period_blocks, period_blocks), total) for depth in wanted}
    if len(depths) == 1 and total > min(depths):
        depths.add(min(min(depths) + period_blocks, total))
    if len(depths) == 1 and total > 1:
        depths.add(total // 2)
    return sorted(depths)


def plan_slice(headers: Sequence[Header], raw: bytes, keep: Sequence[int]) -> SlicePlan:
    """Plan of a slice with the blocks `keep`, renumbered from 0; `raw` is the beginning of the first file."""
    first = headers[0]
    if len(raw) < max((entry.end for entry in first.entries), default=0):
        raise GgufError("the bytes given do not hold the whole metadata of the first file")
    new_number = {old: new for new, old in enumerate(keep)}
    kept = [
        (name, shard, header, tensor)
        for shard, header in enumerate(headers)
        for tensor in header.tensors
        if (name := _new_name(tensor.name, new_number)) is not None
    ]
    metadata = list(_metadata(first, raw, keep))
    body = bytearray(
        MAGIC + struct.pack("<IQQ", first.version, len(kept), len(metadata)) + b"".join(metadata)
    )
    ranges, offset = [], 0
    for name, shard, header, tensor in kept:
        body += _tensor_info(name, tensor, offset)
        padding = -tensor.size_bytes % first.alignment
        ranges.append(Range(shard, header.data_start + tensor.offset, tensor.size_bytes, padding))
        offset += tensor.size_bytes + padding
    body += bytes(-len(body) % first.alignment)
    return SlicePlan(len(keep), bytes(body), tuple(ranges))


def write_slice(plan: SlicePlan, sources: Sequence[BinaryIO], sink: BinaryIO) -> None:
    """Write a slice with real tensor data, a few megabytes in memory at a time."""
    for part in slice_stream(plan, sources):
        sink.write(part)


def slice_stream(plan: SlicePlan, sources: Sequence[BinaryIO]) -> Iterator[bytes]:
    yield plan.header
    for part in plan.ranges:
        source = sources[part.shard]
        source.seek(part.start)
        left = part.length
        while left:
            data = source.read(min(left, COPY_BYTES))
            if not data:
                raise GgufError(f"the model file ends {left} bytes before the end of a tensor")
            left -= len(data)
            yield data
        if part.padding:
            yield bytes(part.padding)


def write_hollow(plan: SlicePlan, sink: BinaryIO) -> None:
    """Write the header alone and extend the file: a sparse file of zeros on most file systems."""
    sink.write(plan.header)
    sink.truncate(plan.file_bytes)


def joined_ranges(plan: SlicePlan) -> list[Range]:
    """The ranges with neighbours joined, for a copy by few commands; padding comes from the old file where it fits."""
    joined: list[Range] = []
    for part in plan.ranges:
        before = joined[-1] if joined else None
        if (
            before
            and before.shard == part.shard
            and before.start + before.length + before.padding == part.start
        ):
            length = before.length + before.padding + part.length
            joined[-1] = Range(part.shard, before.start, length, part.padding)
        else:
            joined.append(part)
    return joined


def _new_name(name: str, new_number: dict[int, int]) -> str | None:
    match = BLOCK_TENSOR.match(name)
    if match is None:
        return name
    block = int(match[1])
    return f"blk.{new_number[block]}.{match[2]}" if block in new_number else None


def _metadata(first: Header, raw: bytes, keep: Sequence[int]) -> Iterator[bytes]:
    architecture = str(first.values["general.architecture"])
    count_key = f"{architecture}.block_count"
    block_count = int(str(first.values[count_key]))
    for entry in first.entries:
        whole = raw[entry.start : entry.end]
        if re.match(r"split\.", entry.key):
            continue
        if entry.key == count_key:
            whole = raw[entry.start : entry.value_start] + struct.pack(
                f"<{SCALARS[entry.value_type]}", len(keep)
            )
        elif _is_per_block(entry, architecture, block_count):
            whole = _cut_array(entry, raw, keep)
        yield whole


def _is_per_block(entry: Entry, architecture: str, block_count: int) -> bool:
    is_numbers = entry.value_type == ARRAY and entry.item_type != STRING
    return is_numbers and entry.items == block_count and entry.key.startswith(f"{architecture}.")


def _cut_array(entry: Entry, raw: bytes, keep: Sequence[int]) -> bytes:
    assert entry.item_type is not None, "only arrays are cut"
    size = struct.calcsize(f"<{SCALARS[entry.item_type]}")
    data_start = entry.value_start + 12
    items = [raw[data_start + size * index : data_start + size * (index + 1)] for index in keep]
    head = raw[entry.start : entry.value_start] + struct.pack("<IQ", entry.item_type, len(keep))
    return head + b"".join(items)


def _tensor_info(name: str, tensor: Tensor, offset: int) -> bytes:
    encoded = name.encode()
    shape = struct.pack(f"<{len(tensor.shape)}Q", *tensor.shape)
    return (
        struct.pack("<Q", len(encoded))
        + encoded
        + struct.pack("<I", len(tensor.shape))
        + shape
        + struct.pack("<IQ", tensor.type_number, offset)
    )

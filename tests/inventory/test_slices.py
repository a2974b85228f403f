"""Slices of a model: what stays, what is renumbered, and that llama-server takes them."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import pytest

from inventory.core.gguf import GgufError, Header, read_header
from inventory.core.model_shape import shape_of
from inventory.core.slices import (
    SlicePlan,
    first_blocks,
    joined_ranges,
    plan_slice,
    slice_depths,
    write_hollow,
    write_slice,
)
from inventory.upstream import Health, open_server
from tests.conftest import wait_until
from tests.inventory.tiny_models import Tiny
from tests.lab.sshd_host import free_port


def plan(path: Path, keep: Sequence[int]) -> tuple[SlicePlan, Header]:
    with path.open("rb") as file:
        header = read_header(file, path.stat().st_size)
        file.seek(0)
        return plan_slice([header], file.read(header.data_start), keep), header


def real(path: Path, keep: Sequence[int]) -> bytes:
    sink = BytesIO()
    with path.open("rb") as source:
        write_slice(plan(path, keep)[0], [source], sink)
    return sink.getvalue()


def test_a_slice_of_all_blocks_is_the_same_file(small_model: Path) -> None:
    assert real(small_model, range(30)) == small_model.read_bytes()


def test_a_slice_holds_the_first_blocks_and_says_so(small_model: Path) -> None:
    content = real(small_model, range(6))
    shape = shape_of([read_header(BytesIO(content), len(content))])
    assert len(shape.blocks) == 6
    assert shape.has_chat_template and shape.vocabulary == 49152


def test_arrays_with_one_value_a_block_are_cut(tmp_path: Path) -> None:
    path = Tiny("openelm", keys={"attention.head_count_kv": [1, 2, 2, 4]}).write(tmp_path / "m.gguf")
    content = real(path, [0, 3])
    header = read_header(BytesIO(content), len(content))
    assert header.values["openelm.attention.head_count_kv"] == (1, 4)
    assert {tensor.name.split(".")[1] for tensor in header.tensors if tensor.name.startswith("blk.")} == {
        "0",
        "1",
    }


def test_a_hollow_slice_has_the_length_of_a_real_one_and_takes_no_disk(
    small_model: Path, tmp_path: Path
) -> None:
    wanted, _ = plan(small_model, range(6))
    path = tmp_path / "hollow.gguf"
    with path.open("wb") as sink:
        write_hollow(wanted, sink)
    assert path.stat().st_size == wanted.file_bytes == len(real(small_model, range(6)))
    assert path.stat().st_blocks * 512 < wanted.file_bytes / 10


def test_neighbouring_tensors_are_copied_in_one_piece(small_model: Path) -> None:
    whole, _ = plan(small_model, range(30))
    assert len(joined_ranges(whole)) == 1


def test_depths_are_whole_periods_and_two_at_least() -> None:
    assert slice_depths(1, 30) == [2, 6]
    assert slice_depths(6, 18) == [6, 12]
    assert slice_depths(2, 24) == [2, 6]
    assert slice_depths(4, 48, (2, 6, 10)) == [4, 8, 12]
    assert slice_depths(1, 2) == [1, 2]
    assert slice_depths(1, 1) == [1]


def test_more_blocks_than_there_are_cannot_be_kept() -> None:
    with pytest.raises(GgufError, match="40 blocks cannot be cut from 30"):
        first_blocks(40, 30)


@pytest.mark.parametrize("kind", ["hollow", "real"])
def test_llama_server_runs_a_slice(kind: str, small_model: Path, tmp_path: Path, llama_server: Path) -> None:
    path = tmp_path / "slice.gguf"
    with path.open("wb") as sink:
        if kind == "hollow":
            write_hollow(plan(small_model, range(2))[0], sink)
        else:
            sink.write(real(small_model, range(2)))
    port = free_port("127.0.0.1")
    argv = [
        llama_server,
        "-m",
        path,
        "--port",
        str(port),
        "-c",
        "256",
        "-t",
        "1",
        "-fit",
        "off",
        "--host",
        "127.0.0.1",
    ]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    async def health() -> Health:
        async with open_server(port) as server:
            return await server.health()

    async def steps() -> list[float]:
        async with open_server(port) as server:
            return await server.decode_step_seconds([100, 101], 0, 6, timeout_seconds=60)

    try:
        wait_until(lambda: asyncio.run(health()) == Health.READY, "llama-server is ready")
        assert len(asyncio.run(steps())) >= 4
    finally:
        process.kill()
        process.wait()
